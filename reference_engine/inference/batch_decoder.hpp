/// @file
/// Several texts at a time through one model.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inference/model.hpp"
#include "inference/sampler.hpp"
#include "text/answer_stream.hpp"

namespace ferry::engine {

/// Why nothing more is generated for a prompt.
enum class Ended : std::uint8_t { interrupted, max_new_tokens, context, end_token, stop_string };

/// "max_new_tokens", ...
const char* ended_name(Ended ended);

/// A text to continue.
struct DecodeRequest {
  std::vector<std::uint32_t> tokens;  ///< one at least, as many as the model's context at most
  std::uint32_t max_new_tokens = 128;
  Sampling sampling;
  std::vector<std::string> stops;  ///< texts that end it
  std::uint32_t alternatives = 0;  ///< likeliest tokens to report with each
  bool probabilities = false;      ///< report that of each token
  bool keep_logits = false;
  bool ignore_end = false;  ///< go on behind end tokens
  std::uint32_t positions =
      0;  ///< makes room for so many tokens in all, if it needs fewer: for texts that follow in its place
};

/// What came of it.
struct Decoded {
  std::vector<std::uint32_t> tokens;  ///< with the end token if it came
  std::string text;  ///< what is shown of them: whole characters, without special tokens and stop strings
  Ended ended = Ended::interrupted;
  std::vector<TokenProbability> probabilities;              ///< of each token, if asked for
  std::vector<std::vector<TokenProbability>> alternatives;  ///< likewise
  std::vector<float> logits;                                ///< [tokens, vocabulary] if kept
  std::vector<float> last_logits;                           ///< of the last forward pass
};

/// Places for texts; each step is one forward pass: a chunk of one prompt, or the next token of every text that goes on.
///
/// A text's tokens do not depend on what is decoded beside it, on stacks that compute what the resident model does.
class BatchDecoder {
 public:
  struct Options {
    std::uint32_t places = 1;
    std::uint32_t prefill_chunk = 128;
    bool in_turn = false;  ///< a chunk of a prompt and a decode step in turn; else prompts first
  };
  /// `more(place, token, text)`: a token came, and `text` can be shown; it is called for tokens without text, too.
  using Listener = std::function<void(std::uint32_t place, std::uint32_t token, const std::string& text)>;

  /// Both must outlive it, and nobody else may use them meanwhile.
  BatchDecoder(Model& model, ExpertRunner& runner, const Options& options, Listener more = {});
  ~BatchDecoder();

  /// Takes a free place. Throws InputError if none is free, for a prompt that the model cannot take, or if memory is short.
  std::uint32_t add(const DecodeRequest& request);
  /// Puts a prompt in the place of a text that goes no further and that it continues. What both begin with is not run again,
  /// unless a step failed, a layer has forgotten what that takes, or the prompt needs a larger cache. Returns how many tokens
  /// are not run again. Throws as `add` does, and then the place is free.
  std::uint32_t add_behind(std::uint32_t place, const DecodeRequest& request);
  [[nodiscard]] bool has_room() const;
  /// Whether any text has prompt left, or goes on.
  [[nodiscard]] bool prefilling() const;
  [[nodiscard]] bool decoding() const;
  /// What went into a forward pass: its phase, and how many tokens.
  struct Step {
    Phase phase = Phase::decode;
    std::uint32_t rows = 0;
  };
  /// One forward pass; none if nobody has anything left to do. Throws what failed; the texts in that step are over then.
  Step step();

  [[nodiscard]] bool is_over(std::uint32_t place) const;
  [[nodiscard]] const Decoded& decoded(std::uint32_t place) const;
  /// Tokens of its prompt that have been run.
  [[nodiscard]] std::uint32_t prefilled(std::uint32_t place) const;
  /// The place is free again; a text that goes on is interrupted.
  Decoded release(std::uint32_t place);
  /// Of keys and values, at present.
  [[nodiscard]] std::uint64_t cache_bytes() const;

 private:
  struct Place;
  std::unique_ptr<Place> make_place(const DecodeRequest& request) const;
  Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::uint32_t logit_rows);
  Step prefill(std::uint32_t place);
  Step decode();
  void accept(std::uint32_t place, const LogitRow& logits);

  Model& model_;
  ExpertRunner& runner_;
  Options options_;
  Listener more_;
  std::vector<std::unique_ptr<Place>> places_;
  std::vector<KvCache> caches_;
  bool decode_next_ = false;
  std::uint32_t turn_ = 0;  ///< whose prompt is next
};

}  // namespace ferry::engine
