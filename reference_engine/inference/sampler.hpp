/// @file
/// Which token comes next.
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

namespace ferry::engine {

/// How tokens are drawn. The defaults take the likeliest.
struct Sampling {
  double temperature = 0;        ///< 0, or below 1e-6: the likeliest token, ties to the lower one
  std::uint32_t top_k = 0;       ///< from so many likeliest tokens, and those that tie with the last; 0: from all
  double top_p = 1;              ///< from the fewest likeliest tokens that have so much probability together
  double min_p = 0;              ///< from those at least this share as likely as the likeliest
  double repeat_penalty = 1;     ///< logits of tokens that the text has are divided by it, or multiplied if below 0
  double presence_penalty = 0;   ///< taken from logits of generated tokens, once
  double frequency_penalty = 0;  ///< and as often as each was generated
  std::uint64_t seed = 0;

  /// Throws InputError, by the name of the option, for what is none of its values.
  void check() const;
};

/// A token and the logarithm of its probability, as the model has it: before penalties, temperature and all that.
struct TokenProbability {
  std::uint32_t token = 0;
  double log_probability = 0;
};

using LogitRow = Eigen::Ref<const Eigen::RowVectorXf>;

/// The `count` likeliest, the likeliest first; ties to the lower token.
std::vector<TokenProbability> likeliest(const LogitRow& logits, std::uint32_t count);
double log_probability(const LogitRow& logits, std::uint32_t token);

/// One sequence's. The same seed and logits give the same tokens, whatever else is decoded beside it.
///
/// Source: the order is that of Hugging Face's transformers: repetition penalty, temperature, top-k, top-p, min-p; the other two
/// penalties are OpenAI's, ahead of the temperature. One draw a token, in double precision. O(V), or O(V log V) with top-p or
/// min-p and without top-k.
class Sampler {
 public:
  /// `prompt`: what the text has so far.
  Sampler(const Sampling& sampling, std::span<const std::uint32_t> prompt);
  std::uint32_t operator()(const LogitRow& logits);

  /// A token that may come, and its share of the draw.
  struct Candidate {
    double score;  ///< its logit behind penalties and temperature
    std::uint32_t token;
    double probability = 0;
  };
  /// What the next token is drawn from, by ascending token; at temperature 0 the one.
  [[nodiscard]] std::vector<Candidate> candidates(const LogitRow& logits) const;

 private:
  void penalize(std::vector<double>& scores) const;
  void keep_top_k(std::vector<Candidate>& all) const;
  void keep_likely(std::vector<Candidate>& all) const;

  Sampling s_;
  std::mt19937_64 random_;
  std::unordered_map<std::uint32_t, std::uint32_t> seen_;  ///< how often each was generated; 0: it is of the prompt
};

}  // namespace ferry::engine
