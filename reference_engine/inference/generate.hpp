/// @file
/// From prompts to text.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "inference/batch_decoder.hpp"

namespace ferry::engine {

/// A whole text as the model's tokens. Throws InputError if the model has no tokenizer, or one with other tokens than it has.
std::vector<std::uint32_t> tokenize(const Model& model, const std::string& text);

/// A text as a model's tokens, without those that a text begins with.
struct TokenizedText {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint32_t> bytes;  ///< that each stands for; empty: nobody knows, and each counts as one
};
/// Throws as `tokenize` does.
TokenizedText tokenized(const Model& model, const std::string& text);

/// Tokens that a user gives, without what the model's texts begin with: whoever cuts them into windows puts that before each.
std::vector<std::uint32_t> without_begin(const Model& model, std::vector<std::uint32_t> tokens);

struct GenerateOptions {
  std::vector<std::string> prompts;
  std::vector<std::vector<std::uint32_t>> token_prompts;  ///< instead, as the model's tokens, from the first on
  std::uint32_t max_new_tokens = 128;
  std::uint32_t batch = 1;         ///< prompts decoded together, at least 1
  Sampling sampling;               ///< its seed is for the first prompt, and grows by one from prompt to prompt
  std::vector<std::string> stops;  ///< texts that end what is generated
  bool probabilities = false;      ///< report that of each token
  std::uint32_t alternatives = 0;  ///< and the likeliest so many
  std::uint32_t prefill_chunk = 128;

  // Called on the generating thread.
  std::function<void(std::uint64_t done, std::uint64_t total)> on_prefill;
  std::function<void(std::size_t prompt, std::uint32_t token, const std::string& text)>
      on_token;  ///< what can be shown
  bool keep_logits = false;
  bool ignore_end = false;                  ///< go on behind end tokens
  const std::atomic<bool>* stop = nullptr;  ///< set: end after the current step

  /// What times are told by; empty: this machine's clock.
  std::function<Nanoseconds()> clock;
};

struct Generated {
  std::vector<std::string> text;  ///< one a prompt, the generated part, as bytes; special tokens have none
  std::vector<std::vector<std::uint32_t>> token_ids;  ///< the same as tokens, with the end token if it came
  std::vector<Ended> ended;                           ///< one a prompt
  std::vector<std::vector<float>> logits;  ///< if they are kept: [token_ids, vocabulary], from which each was taken
  std::vector<std::vector<float>> last_logits;                           ///< one a prompt, of its last forward pass
  std::vector<std::vector<TokenProbability>> probabilities;              ///< if asked for, one a token
  std::vector<std::vector<std::vector<TokenProbability>>> alternatives;  ///< likewise
  double ttft_s = 0;  ///< mean over the groups that were decoded together
  double prefill_s = 0, decode_s = 0;
  std::uint64_t prefill_tokens = 0, decode_tokens = 0, decode_steps = 0;
  std::uint64_t kv_bytes = 0;  ///< largest at one time
  bool interrupted = false;
};

/// The tokens of each prompt. Throws InputError for texts that the model cannot read, and tokens that it does not have.
std::vector<std::vector<std::uint32_t>> tokens_of(const Model& model, const GenerateOptions& options);
/// Throws InputError for a text without tokens, or with one that the model does not have.
void check_tokens(const ModelConfig& config, const std::vector<std::vector<std::uint32_t>>& texts);

/// Runs the prompts in groups of `batch`. Throws InputError for a prompt longer than the context.
Generated generate(Model& model, ExpertRunner& runner, const GenerateOptions& options);

}  // namespace ferry::engine
