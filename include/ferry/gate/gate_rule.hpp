/// @file
/// How a model's gate turns its logits into the scores that choose experts and the weights of what they give.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// What a logit becomes.
enum class Gating : std::uint8_t {
  softmax,      ///< Mixtral, Qwen, DeepSeek-V2, OLMoE, gpt-oss, Granite, ERNIE 4.5, ...
  sigmoid,      ///< DeepSeek-V3, GLM-4.5, dots.llm1, MiniMax-M2, Llama 4
  sparse_mixer  ///< Phi-3.5-MoE: a softmax for the first of two experts, and another for the second without it
};

/// Makes both arrays of `Scores` of a row's logits: `select`, whose k highest are chosen, and `weight`, which a router
/// divides by their sum if the model does (`Shape::renormalise`) and multiplies by the model's factor (`Shape::scale`).
/// The k chosen need no rule of their own: taking the softmax of the k highest logits (top-k, then softmax) is a softmax of
/// all of them whose k highest are divided by their sum.
///
/// Source: the models' own code. Weights are never negative. They sum to one over all experts for a softmax alone: a sigmoid's
/// are each between 0 and 1 by itself, and a sparse mixer's two are each a share of those that are nearly as good.
///
/// Ambiguities resolved: the weight that a sparse mixer gives an expert other than the first is what it would have as the
/// second, so that a substitute for the second has one, too; models never ask for that of any other.
/// Complexity: O(E) exponentials, and O(kept groups * E). No state.
struct GateRule {
  /// The most groups that a row may have.
  static constexpr std::uint32_t most_groups = 64;

  Gating gating = Gating::softmax;  ///< what a logit becomes
  std::uint16_t groups = 1;         ///< of adjacent experts, all equally large; at most `most_groups`, a divisor of E
  std::uint16_t kept_groups = 1;    ///< how many of them, the best ones, a row chooses from
  std::uint16_t group_votes = 1;  ///< a group is as good as the sum of its best 1 or 2 experts; never more than it has
  float mixer_epsilon = 0;        ///< of a sparse mixer: experts within twice this share of the best one count
  /// Of a sigmoid: experts are chosen by logits, since it does not tell high ones apart (Llama 4). There is no bias then.
  bool by_logit = false;

  /// Whether `Scores::select` is another array than `Scores::weight`: elsewhere they may be one.
  FERRY_HD bool separate(bool biased) const noexcept {
    return biased || groups > 1 || by_logit || gating == Gating::sparse_mixer;
  }

  /// Scores one row. `bias`, [E]: added to what experts are chosen by, not to weights; null: none. `select` and `weight`, [E],
  /// may be one array, or that of `logits`, only where `separate` is false.
  FERRY_HD void score(View<const float> logits, const float* bias, float* select, float* weight) const noexcept {
    if (gating == Gating::sigmoid) {
      for (std::uint32_t e = 0; e < logits.size; ++e) weight[e] = 1.0F / (1.0F + std::exp(-logits[e]));
    } else {
      softmax(logits, weight);
    }
    if (select != weight) {
      for (std::uint32_t e = 0; e < logits.size; ++e) {
        select[e] = by_logit ? ascending(logits[e], weight[e]) : weight[e] + (bias != nullptr ? bias[e] : 0.0F);
      }
    }
    if (gating == Gating::sparse_mixer) {
      tell_apart(logits, weight, select);
      mix(logits, weight);
    }
    if (groups > 1) keep_groups({select, logits.size});
  }

 private:
  /// Ascends as logits do and is never negative, which policies expect: a sigmoid that goes on as its tangent at 0.
  FERRY_HD static float ascending(float logit, float sigmoid) noexcept {
    if (logit > 0.0F) return 0.5F + 0.25F * logit;
    return logit < lowest_exponent ? beyond(logit) : sigmoid;
  }
  /// Tells experts apart to which the softmax gives next to nothing, or nothing: the second choice may be one of them, and its
  /// weight is whatever `mix` makes it.
  FERRY_HD static void tell_apart(View<const float> logits, const float* softmax, float* select) noexcept {
    std::uint32_t best = 0;
    for (std::uint32_t e = 1; e < logits.size; ++e) best = logits[e] > logits[best] ? e : best;
    for (std::uint32_t e = 0; e < logits.size; ++e) {
      const float below = logits[e] - logits[best];
      if (below < lowest_exponent) select[e] = beyond(below) * softmax[best];
    }
  }
  /// exp(x) at the lowest exponent, and below it falls no faster than floats can follow.
  FERRY_HD static float beyond(float x) noexcept { return 1.8048514e-35F * (1.0F - lowest_exponent) / (1.0F - x); }
  static constexpr float lowest_exponent = -80.0F;

  FERRY_HD static void softmax(View<const float> logits, float* out) noexcept {
    float most = logits[0], sum = 0.0F;
    for (const float l : logits) most = l > most ? l : most;
    for (std::uint32_t e = 0; e < logits.size; ++e) {
      out[e] = std::exp(logits[e] - most);
      sum += out[e];
    }
    for (std::uint32_t e = 0; e < logits.size; ++e) out[e] /= sum;
  }

  /// Whether a logit counts beside the best one.
  FERRY_HD bool near(float logit, float best) const noexcept {
    const float size = logit < 0.0F ? -logit : logit;
    return !((best - logit) / (size > best ? size : best) > 2.0F * mixer_epsilon);
  }

  FERRY_HD void mix(View<const float> logits, float* weight) const noexcept {
    std::uint32_t first = 0;
    for (std::uint32_t e = 1; e < logits.size; ++e) first = logits[e] > logits[first] ? e : first;
    float second = -std::numeric_limits<float>::infinity();
    for (std::uint32_t e = 0; e < logits.size; ++e) {
      if (e != first && logits[e] > second) second = logits[e];
    }
    float of_first = 0.0F, of_second = 0.0F;
    for (std::uint32_t e = 0; e < logits.size; ++e) {
      if (near(logits[e], logits[first])) of_first += std::exp(logits[e] - logits[first]);
      if (e != first && near(logits[e], second)) of_second += std::exp(logits[e] - second);
    }
    for (std::uint32_t e = 0; e < logits.size; ++e) {
      weight[e] = e == first ? 1.0F / of_first : std::exp(logits[e] - second) / of_second;
    }
  }

  /// Excludes all but the best groups from the choice. Ties go to the earlier group.
  FERRY_HD void keep_groups(View<float> select) const noexcept {
    const std::uint32_t each = select.size / groups;
    std::uint64_t kept = 0;
    for (std::uint32_t n = 0; n < kept_groups; ++n) {
      std::uint32_t best = groups;
      float most = 0.0F;
      for (std::uint32_t g = 0; g < groups; ++g) {
        if ((kept >> g & 1U) != 0) continue;
        const float worth = votes(select.part(g * each, each));
        if (best == groups || worth > most) {
          best = g;
          most = worth;
        }
      }
      kept |= std::uint64_t{1} << best;
    }
    for (std::uint32_t e = 0; e < select.size; ++e) {
      if ((kept >> (e / each) & 1U) == 0) select[e] = -std::numeric_limits<float>::infinity();
    }
  }

  FERRY_HD float votes(View<const float> group) const noexcept {
    float first = -std::numeric_limits<float>::infinity(), second = first;
    for (const float s : group) {
      if (s > first) {
        second = first;
        first = s;
      } else if (s > second) {
        second = s;
      }
    }
    return group_votes > 1 ? first + second : first;
  }
};

}  // namespace ferry::inline FERRY_ABI
