/// @file
/// OpenAI's interface as data: bodies of requests in, bodies of answers out.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inference/batch_decoder.hpp"
#include "serve/api_error.hpp"
#include "serve/decode_loop.hpp"
#include "support/json.hpp"
#include "text/chat_template.hpp"

namespace ferry::engine {

/// What requests are read against.
struct ApiModel {
  std::string name;
  const Model& model;
  const Tokenizer& tokenizer;
  const ChatTemplate& chat;
  Sampling sampling;          ///< where a request says nothing
  std::uint32_t context = 0;  ///< tokens of a prompt and its continuation
  std::uint32_t most_choices = 4;
  bool draws_seeds = false;  ///< for requests that give none, instead of that of `sampling`
  std::string folder{};      ///< of the model's files, which clients are not told
};

/// A request as it is decoded: one DecodeRequest for each choice of each prompt.
struct ApiRequest {
  bool chat = false, stream = false, include_usage = false;
  bool echo = false;           ///< the prompt goes before the text
  bool reports_stack = false;  ///< `ferry`: the stack's counters in the answer
  bool probabilities = false;
  std::vector<DecodeRequest> choices;
  std::vector<std::string> prompts;  ///< of each choice, if it is echoed
  std::uint64_t prompt_tokens = 0;   ///< of all prompts, each once
};

/// Reads the body of POST /v1/completions, or with `chat` of /v1/chat/completions. Throws ApiError.
ApiRequest read_request(const std::string& body, bool chat, const ApiModel& model);

/// Answers of one request.
class ApiAnswer {
 public:
  ApiAnswer(const ApiRequest& request, const ApiModel& model, std::int64_t created, std::string id);

  /// Once all answers are there.
  [[nodiscard]] Json whole(const std::vector<std::shared_ptr<Answer>>& answers) const;
  /// A stream's first chunk of a choice, a piece's, its last, and that of the usage.
  [[nodiscard]] Json first_chunk(std::uint32_t choice) const;
  [[nodiscard]] Json chunk(std::uint32_t choice, const Answer::Piece& piece) const;
  [[nodiscard]] Json last_chunk(std::uint32_t choice, const Answer& answer) const;
  [[nodiscard]] Json usage_chunk(const std::vector<std::shared_ptr<Answer>>& answers) const;

 private:
  [[nodiscard]] Json frame(const char* object) const;
  [[nodiscard]] Json usage(const std::vector<std::shared_ptr<Answer>>& answers) const;
  [[nodiscard]] Json probabilities(const std::vector<TokenProbability>& tokens,
                                   const std::vector<std::vector<TokenProbability>>& alternatives) const;
  [[nodiscard]] std::string text_of(std::uint32_t token) const;
  /// The same, but bytes that are no text by themselves as "bytes:\xc3": names in a list have to differ.
  [[nodiscard]] std::string name_of(std::uint32_t token) const;

  const ApiRequest& request_;
  const ApiModel& model_;
  std::int64_t created_;
  std::string id_;
};

/// A request names another model.
ApiError no_such_model(const std::string& name, const ApiModel& model);
/// GET /v1/models/NAME, and /v1/models.
Json model_answer(const ApiModel& model, std::int64_t created);
Json models_answer(const ApiModel& model, std::int64_t created);
/// GET /metrics, in Prometheus' text format; GET /stats, the same numbers in JSON.
std::string metrics_text(const LoopStatistics& s, const std::string& stack);
Json stats_json(const LoopStatistics& s, const std::string& stack);
/// The difference of two states of a stack's counters.
Json counters_between(const Counters& before, const Counters& after);

}  // namespace ferry::engine
