/// @file
/// Importance-driven scheduling's score-based eviction.
#pragma once
#include <string>

#include "ferry/cache/fixed_score.hpp"
#include "ferry/cache/slot_experts.hpp"
#include "ferry/error.hpp"

namespace ferry {

/// Evicts the expert with the lowest mean gate score over the last n iterations, counting every expert of a layer,
/// chosen or not: an expert that often comes close is likelier to be chosen next than one that never does.
///
/// Source: Importance-driven scheduling, section 5.3. That an expert stays while its layer computes ("shield") is the
/// core's lease, a barred slot here.
///
/// Complexity: observe O(rows * E), victim O(layers + experts of one). State: 4 n + 12 bytes an expert of the
/// pool's layers, 36 a layer, 8 a slot.
///
/// Ambiguities resolved.
///  - n: the paper gives none. 16 is ours.
///  - Score: `Scores::weight`, by which an expert contributes to the output (the paper's measure of importance),
///    clamped to 0 to 1; NaN counts as 0. Sums are integers in units of 2^-24.
///  - Iteration: one step of the layer, in prefill too. Its score of an expert is the mean over the step's rows.
///  - Layers seen fewer than n times: the mean over the times seen; 0 for a layer never seen.
///  - The window does not end with a sequence: it is the most recent past, whoever made it.
class ScoreWindow {
 public:
  static constexpr bool needs_full_scores = true;

  std::uint32_t iterations = 16;  ///< n, 1 to 65535

  void reserve(Carver& carve, const PoolShape& pool) {
    if (iterations == 0 || iterations > 65535) {
      throw ConfigError("ScoreWindow: iterations is " + std::to_string(iterations) + ", expected 1 to 65535");
    }
    slots_.reserve(carve, pool);
    carve(windows_, pool.layers);
    carve(sums_, slots_.size());
    carve(newest_, pool.experts);
    carve(ring_, std::size_t{slots_.size()} * iterations);
  }

  FERRY_HD void observe(const Scores& scores) noexcept {
    const std::uint32_t experts = slots_.experts(), rows = scores.weight.size / experts;
    if (rows == 0) return;
    const std::uint32_t layer = slots_.layer(scores.layer);
    Window& window = windows_[layer];
    std::uint64_t* sums = sums_.data() + std::size_t{layer} * experts;
    std::uint32_t* oldest = ring_.data() + (std::size_t{layer} * iterations + window.next) * experts;
    for (std::uint64_t& sum : newest_) sum = 0;
    for (std::uint32_t first = 0; first < scores.weight.size; first += experts) {
      for (std::uint32_t e = 0; e < experts; ++e) newest_[e] += fixed_score(scores.weight[first + e]);
    }
    for (std::uint32_t e = 0; e < experts; ++e) {
      const std::uint32_t score = fixed_mean(newest_[e], rows);
      sums[e] += score;
      sums[e] -= oldest[e];
      oldest[e] = score;
    }
    window.next = window.next + 1 == iterations ? 0 : window.next + 1;
    if (window.seen < iterations) ++window.seen;
    slots_.changed(scores.layer);
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) noexcept {
    return slots_.least(barred, [this](ExpertId id) { return mean(id); });
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, mean(what.id));
  }

 private:
  struct Window {
    std::uint32_t seen = 0;  ///< iterations in it
    std::uint32_t next = 0;  ///< where the next one goes
  };
  struct Mean {
    std::uint64_t sum = 0;  ///< at most n 2^24
    std::uint32_t count = 1;
    FERRY_HD bool operator<(const Mean& other) const noexcept { return sum * other.count < other.sum * count; }
  };

  FERRY_HD Mean mean(ExpertId id) const noexcept {
    const std::uint32_t seen = windows_[slots_.layer(id.layer)].seen;
    return {sums_[slots_.index(id)], seen == 0 ? 1 : seen};
  }

  SlotExperts<Mean> slots_;
  Array<Window> windows_;        ///< [layers]
  Array<std::uint64_t> sums_;    ///< [layers, experts], over the window
  Array<std::uint64_t> newest_;  ///< [experts], of one step
  Array<std::uint32_t> ring_;    ///< [layers, iterations, experts]
};

static_assert(CachePolicy<ScoreWindow>);

}  // namespace ferry
