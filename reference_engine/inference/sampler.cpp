#include "inference/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "support/errors.hpp"

namespace ferry::engine {

void Sampling::check() const {
  const auto need = [](bool good, const char* option, double value, const char* expected) {
    if (!good) throw InputError(fmt::format("{}: expected {}, got {}", option, expected, value));
  };
  // Written so that NaN fails every check.
  need(temperature >= 0 && temperature <= 100, "--temperature", temperature, "a number from 0 to 100");
  need(top_p > 0 && top_p <= 1, "--top-p", top_p, "a number above 0, 1 at most");
  need(min_p >= 0 && min_p <= 1, "--min-p", min_p, "a number from 0 to 1");
  need(repeat_penalty >= 1e-6 && repeat_penalty <= 100, "--repeat-penalty", repeat_penalty,
       "a number from 1e-6 to 100");
  need(std::abs(presence_penalty) <= 100, "--presence-penalty", presence_penalty, "a number from -100 to 100");
  need(std::abs(frequency_penalty) <= 100, "--frequency-penalty", frequency_penalty, "a number from -100 to 100");
}

namespace {

constexpr double coldest = 1e-6;  // less counts as 0: dividing by it might overflow

double log_sum(const LogitRow& logits) {
  const double most = logits.maxCoeff();
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - most);
  return most + std::log(sum);
}

}  // namespace

std::vector<TokenProbability> likeliest(const LogitRow& logits, std::uint32_t count) {
  const auto n = static_cast<std::uint32_t>(logits.size());
  std::vector<std::uint32_t> order(n);
  for (std::uint32_t i = 0; i < n; ++i) order[i] = i;
  const std::uint32_t wanted = std::min(count, n);
  std::partial_sort(order.begin(), order.begin() + wanted, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  const double sum = log_sum(logits);
  std::vector<TokenProbability> all;
  for (std::uint32_t i = 0; i < wanted; ++i) all.push_back({order[i], logits[order[i]] - sum});
  return all;
}

double log_probability(const LogitRow& logits, std::uint32_t token) {
  return logits[token] - log_sum(logits);
}

Sampler::Sampler(const Sampling& sampling, std::span<const std::uint32_t> prompt)
    : s_(sampling), random_(sampling.seed) {
  if (s_.repeat_penalty == 1) return;
  for (const std::uint32_t t : prompt) seen_.emplace(t, 0);
}

std::vector<Sampler::Candidate> Sampler::candidates(const LogitRow& logits) const {
  std::vector<double> scores(logits.begin(), logits.end());
  penalize(scores);
  if (s_.temperature < coldest) {
    const auto best = std::max_element(scores.begin(), scores.end());
    return {{*best, static_cast<std::uint32_t>(best - scores.begin()), 1}};
  }
  std::vector<Candidate> all;
  all.reserve(scores.size());
  for (std::uint32_t t = 0; t < scores.size(); ++t) all.push_back({scores[t] / s_.temperature, t});
  keep_top_k(all);
  keep_likely(all);
  double most = all[0].score, sum = 0;
  for (const Candidate& c : all) most = std::max(most, c.score);
  for (const Candidate& c : all) sum += std::exp(c.score - most);
  for (Candidate& c : all) c.probability = std::exp(c.score - most) / sum;
  return all;
}

std::uint32_t Sampler::operator()(const LogitRow& logits) {
  const std::vector<Candidate> all = candidates(logits);
  std::uint32_t chosen = all.back().token;
  if (s_.temperature >= coldest) {
    double left = static_cast<double>(random_() >> 11U) * 0x1p-53;
    for (const Candidate& c : all) {
      left -= c.probability;
      if (left >= 0) continue;
      chosen = c.token;
      break;
    }
  }
  if (s_.repeat_penalty != 1 || s_.presence_penalty != 0 || s_.frequency_penalty != 0) ++seen_[chosen];
  return chosen;
}

void Sampler::penalize(std::vector<double>& scores) const {
  for (const auto& [token, count] : seen_) {
    if (token >= scores.size()) continue;
    double& score = scores[token];
    score = score < 0 ? score * s_.repeat_penalty : score / s_.repeat_penalty;
    score -= (count > 0 ? s_.presence_penalty : 0) + count * s_.frequency_penalty;
  }
}

void Sampler::keep_top_k(std::vector<Candidate>& all) const {
  if (s_.top_k == 0 || s_.top_k >= all.size()) return;
  std::vector<double> scores;
  for (const Candidate& c : all) scores.push_back(c.score);
  const auto last = scores.begin() + (s_.top_k - 1);
  std::nth_element(scores.begin(), last, scores.end(), std::greater<>());
  const double least = *last;
  std::erase_if(all, [&](const Candidate& c) { return c.score < least; });
}

/// Drops the tokens that top-p and min-p exclude. The rest is in order of tokens again.
void Sampler::keep_likely(std::vector<Candidate>& all) const {
  if (s_.top_p == 1 && s_.min_p == 0) return;
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  });
  double sum = 0, reached = 0;
  for (const Candidate& c : all) sum += std::exp(c.score - all[0].score);
  std::size_t kept = 0;
  for (; kept < all.size() && (kept == 0 || reached < s_.top_p * sum); ++kept) {
    reached += std::exp(all[kept].score - all[0].score);
  }
  while (kept > 1 && std::exp(all[kept - 1].score - all[0].score) < s_.min_p) --kept;
  all.resize(kept);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

}  // namespace ferry::engine
