/// @file
/// Importance-driven scheduling's score-based eviction.
#pragma once
#include <string>

#include "ferry/detail/fixed_score.hpp"
#include "ferry/detail/slot_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert with the lowest mean gate score over the last n iterations, counting every expert of a layer,
/// chosen or not: an expert that often comes close is likelier to be chosen next than one that never does.
///
/// Source: Importance-driven scheduling, section 5.3. That an expert stays while its layer computes ("shield") is the
/// core's lease, a barred slot here.
///
/// Complexity: observe O(rows * E), victim O(layers + experts of one). State: 4 n + 12 bytes an expert of the
/// pool's layers, 8 an expert of a layer, 48 a layer, 8 a slot.
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

  std::uint32_t iterations = 16;  ///< n, 1 to 4096

  void reserve(Carver& carve, const PoolShape& pool) {
    if (iterations == 0 || iterations > 4096) {
      detail::fail<ConfigError>("ScoreWindow: iterations is " + std::to_string(iterations) + ", expected 1 to 4096");
    }
    slots_.reserve(carve, pool);
    carve(windows_, pool.layers);
    carve(sums_, slots_.size());
    carve(rows_, pool.experts);
    carve(ring_, std::size_t{slots_.size()} * iterations);
  }

  FERRY_HD void observe(const Scores& scores) noexcept {
    const std::uint32_t experts = slots_.experts(), rows = scores.weight.size / experts;
    if (rows == 0) return;
    const std::uint32_t layer = slots_.layer(scores.layer);
    Window& window = windows_[layer];
    std::int64_t* const sums = sums_.data() + std::size_t{layer} * experts;
    std::int32_t* const oldest = ring_.data() + (std::size_t{layer} * iterations + window.next) * experts;
    const auto enter = [sums, oldest](std::uint32_t e, std::int32_t newest) {
      sums[e] += newest - oldest[e];
      oldest[e] = newest;
    };
    if (rows == 1) {  // divisions take longer than all the rest
      const float* const weight = scores.weight.data;
      for (std::uint32_t e = 0; e < experts; ++e) enter(e, detail::fixed_score(weight[e]));
    } else {
      sum_rows(scores.weight.data, rows);
      for (std::uint32_t e = 0; e < experts; ++e)
        enter(e, static_cast<std::int32_t>(detail::fixed_mean(rows_[e], rows)));
    }
    window.next = window.next + 1 == iterations ? 0 : window.next + 1;
    if (window.seen < iterations && ++window.seen == iterations) ++full_;
    slots_.changed(scores.layer);
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) noexcept {
    if (full_ == slots_.layers()) return slots_.least(barred, key());
    return slots_.least(barred, key(),
                        [this](std::int64_t sum, std::uint32_t l) { return mean(sum, windows_[l].seen); });
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, sums_[slots_.index(what.id)]);
  }

  [[nodiscard]] const char* check() const noexcept {
    const std::uint32_t experts = slots_.experts();
    std::uint32_t full = 0;
    for (std::uint32_t l = 0; l < windows_.size(); ++l) {
      const Window& window = windows_[l];
      if (window.seen > iterations ||
          window.next != (window.seen < iterations ? window.seen : window.next % iterations))
        return "ScoreWindow: a window does not go round";
      full += window.seen == iterations ? 1 : 0;
      for (std::uint32_t e = 0; e < experts; ++e) {
        std::int64_t sum = 0;
        for (std::uint32_t i = 0; i < iterations; ++i) sum += ring_[(std::size_t{l} * iterations + i) * experts + e];
        if (sums_[std::size_t{l} * experts + e] != sum) return "ScoreWindow: a sum is not that of its window";
      }
    }
    if (full_ != full) return "ScoreWindow: full windows are counted wrong";
    return slots_.check(key());
  }

 private:
  struct Window {
    std::uint32_t seen = 0;  ///< iterations in it
    std::uint32_t next = 0;  ///< where the next one goes
  };

  FERRY_HD detail::KeyIn key() const noexcept { return {sums_.data()}; }

  /// Of one step.
  FERRY_HD void sum_rows(const float* weight, std::uint32_t rows) noexcept {
    const std::uint32_t experts = slots_.experts();
    for (std::uint32_t e = 0; e < experts; ++e) rows_[e] = 0;
    for (std::uint32_t row = 0; row < rows; ++row, weight += experts) {
      for (std::uint32_t e = 0; e < experts; ++e) rows_[e] += detail::fixed_score(weight[e]);
    }
  }

  /// Over the times seen, in units of 2^-50. Means that differ do so by at least n^-2 = 2^-24 of theirs: these keep
  /// them apart.
  FERRY_HD static std::int64_t mean(std::int64_t sum, std::uint32_t seen) noexcept {
    return static_cast<std::int64_t>(static_cast<double>(sum) / (seen == 0 ? 1 : seen) * 0x1p26);
  }

  detail::SlotExperts slots_;
  Array<Window> windows_;     ///< [layers]
  Array<std::int64_t> sums_;  ///< [layers, experts], over the window, at most n 2^24
  Array<std::int64_t> rows_;  ///< [experts], summed over the rows of one step
  Array<std::int32_t> ring_;  ///< [layers, iterations, experts]
  std::uint32_t full_ = 0;    ///< windows that have seen n iterations
};

static_assert(CachePolicy<ScoreWindow>);

}  // namespace ferry::inline FERRY_ABI
