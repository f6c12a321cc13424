/// @file
/// Importance-driven scheduling's online prediction of top-score experts.
#pragma once
#include <string>

#include "ferry/detail/predicted_experts.hpp"
#include "ferry/error.hpp"
#include "ferry/predictor/every_expert.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode, what resident and shared experts have given so far goes through the next layer's attention and gate; the
/// experts that are top-score there are predicted, best first. In prefill every expert of the next layer is predicted.
///
/// Source: Importance-driven expert scheduling, section 5.2 with section 5.1's top-score experts (decode), section 4.1
/// (prefill: the next layer is prefetched while this one is computed).
///  - Decode: rows [rows, E] are made from the partial hidden state, which is the engine's to compute. Of each row beta
///    is the (k+1)-th score; an expert of rank <= k with a score above (1 + alpha) beta is top-score. Experts of all
///    rows come by their largest score.
///  - Prefill: as EveryExpert, without rows.
/// That the load queue is cleared when the real gate speaks is the core's doing.
///
/// Complexity: O(rows * E) in decode, and O(n^2) for the order of n named experts at worst; O(E) in prefill.
/// State: 30 bytes an expert.
///
/// Ambiguities resolved. Section 5.2 puts "the top k experts" into the load queue, sections 1 and 6.3 only those
/// predicted as top-score; so does this: low-score experts are what the router may replace. Without a (k+1)-th score
/// (k = E, or NaN) all of the k are top-score. At alpha = 0 all are but those that tie with it.
class PartialHidden {
 public:
  static constexpr RowSource prefill_rows = RowSource::none, decode_rows = RowSource::partial_hidden;

  /// How far above the best unchosen score a top-score expert lies. The paper's: 0.35, 0.3, 0.25 (S1, S2, S3).
  float alpha = 0.3F;

  void reserve(Carver& carve, const Shape& shape) {
    if (!(alpha >= 0.0F && alpha <= 1.0F)) {
      detail::fail<ConfigError>("PartialHidden: alpha is " + std::to_string(alpha) + ", it must be 0 to 1");
    }
    experts_ = shape.experts;
    top_k_ = shape.top_k;
    every_.reserve(carve, shape);
    predicted_.reserve(carve, shape);
  }

  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/,
                               View<const std::uint32_t> /*rows*/) noexcept {}

  FERRY_HD void predict(Phase phase, const Scores& scores, Out<Request>& out) noexcept {
    if (phase == Phase::prefill) return every_.predict(phase, scores, out);
    predicted_.clear();
    for (std::uint32_t row = 0; row < predicted_.rows(scores); ++row) {
      predicted_.name(scores, row, top_score_experts(scores, row));
    }
    predicted_.write(phase, scores.layer, out);
  }

  [[nodiscard]] const char* check() const noexcept { return predicted_.check(); }

 private:
  /// Ranks the row; how many of its best are top-score.
  FERRY_HD std::uint32_t top_score_experts(const Scores& scores, std::uint32_t row) noexcept {
    const std::uint32_t k = scores.top_k_or(top_k_);
    if (k == scores.experts_or(experts_)) return predicted_.rank(scores, row, k).size;
    const View<const Route> best = predicted_.rank(scores, row, k + 1U);
    const float* select = scores.select.data + std::size_t{row} * experts_;
    const float bar = (1.0F + alpha) * select[best[k].expert];
    std::uint32_t count = 0;
    while (count < k && !(select[best[count].expert] <= bar)) ++count;  // so that a NaN is no bar
    return count;
  }

  EveryExpert every_;
  detail::PredictedExperts predicted_;
  std::uint16_t experts_ = 0, top_k_ = 0;
};

static_assert(Predictor<PartialHidden>);

}  // namespace ferry::inline FERRY_ABI
