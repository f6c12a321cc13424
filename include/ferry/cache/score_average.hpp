/// @file
/// HybriMoE's score-aware caching.
#pragma once
#include <string>

#include "ferry/detail/best.hpp"
#include "ferry/detail/fixed_score.hpp"
#include "ferry/detail/slot_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert with the lowest exponential moving average of its gate scores, of which only the p best of a row
/// count: S = alpha TopP(s) + (1 - alpha) S, once an iteration.
///
/// Source: HybriMoE (Zhong et al., 2025, arXiv:2504.05897), section IV-D, Eq. 3 ("Minus Recent Score").
///
/// Complexity: observe O(rows * E), and O(p) for each score that enters a row's list; victim O(layers
/// + experts of one). State: 12 bytes an expert of the pool's layers, 8 an expert of a layer, 40 a layer, 12 for each of
/// the p, 8 a slot.
///
/// Deviations. With several rows TopP(s) is the mean over the rows, each with its own p best; the released code reads
/// the first row only. The released code evicts within the layer of the incoming expert; here the pool decides: one a
/// layer gives the same.
/// Ambiguities resolved.
///  - alpha: the paper gives none; 50% is what the released code has.
///  - p: "typically twice the number of activated experts"; 12 is what the released code has, twice the 6 of its
///    DeepSeek model. Set it to 2 k for another. With p >= E every score counts.
///  - Scores are `Scores::weight`, clamped to 0 to 1; NaN counts as 0. A prefill step is one iteration.
///  - S starts at 0 and does not end with a sequence. It is an integer in units of 2^-56, rounded down at each step.
class ScoreAverage {
 public:
  static constexpr bool needs_full_scores = true;

  std::uint32_t alpha_percent = 50;  ///< 1 to 100, what the newest scores weigh
  std::uint32_t top_p = 12;          ///< at least 1, scores of a row that count

  void reserve(Carver& carve, const PoolShape& pool) {
    if (alpha_percent == 0 || alpha_percent > 100) {
      detail::fail<ConfigError>("ScoreAverage: alpha_percent is " + std::to_string(alpha_percent) +
                                ", expected 1 to 100");
    }
    if (top_p == 0)
      detail::fail<ConfigError>("ScoreAverage: top_p is 0, expected at least 1, typically twice the model's k");
    slots_.reserve(carve, pool);
    carve(averages_, slots_.size());
    carve(sums_, pool.experts);
    carve(best_, top_p < pool.experts ? top_p : pool.experts);
  }

  FERRY_HD void observe(const Scores& scores) noexcept {
    const std::uint32_t experts = slots_.experts(), rows = scores.weight.size / experts;
    if (rows == 0) return;
    std::int64_t* const sums = sums_.data();
    for (std::uint32_t e = 0; e < experts; ++e) sums[e] = 0;
    for (std::uint32_t first = 0; first < scores.weight.size; first += experts) {
      const float* row = scores.weight.data + first;
      detail::best_of(row, experts, best_.size(), best_.data());
      for (const Route& r : best_) sums[r.expert] += detail::fixed_score(row[r.expert]);
    }
    std::int64_t* const averages = averages_.data() + std::size_t{slots_.layer(scores.layer)} * experts;
    if (rows == 1 && alpha_percent == 50) {  // a loop without divisions is a few vectors
      for (std::uint32_t e = 0; e < experts; ++e) {
        averages[e] = static_cast<std::int64_t>(static_cast<std::uint64_t>((sums[e] << 32) + averages[e]) >> 1U);
      }
    } else {
      for (std::uint32_t e = 0; e < experts; ++e) {
        const std::int64_t newest = detail::fixed_mean(sums[e], rows) << 32;
        averages[e] = (alpha_percent * newest + (100 - alpha_percent) * averages[e]) / 100;
      }
    }
    slots_.changed(scores.layer);
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) noexcept { return slots_.least(barred, key()); }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, averages_[slots_.index(what.id)]);
  }

  [[nodiscard]] const char* check() const noexcept {
    for (const std::int64_t average : averages_) {
      if (average < 0 || average > std::int64_t{1} << 56U) return "ScoreAverage: an average is not 0 to 1";
    }
    return slots_.check(key());
  }

 private:
  FERRY_HD detail::KeyIn key() const noexcept { return {averages_.data()}; }

  detail::SlotExperts slots_;
  Array<std::int64_t> averages_;  ///< [layers, experts], at most 2^56
  Array<std::int64_t> sums_;      ///< [experts], of one step
  Array<Route> best_;             ///< [min(p, experts)], of one row
};

static_assert(CachePolicy<ScoreAverage>);

}  // namespace ferry::inline FERRY_ABI
