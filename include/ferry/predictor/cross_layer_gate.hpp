/// @file
/// Fate's cross-layer expert prediction.
#pragma once
#include <string>

#include "ferry/detail/predicted_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// The next layer's gate, applied to this layer's gate input, names the experts that the next layer will
/// need: adjacent gate inputs are alike.
///
/// Source: Fate, sections 4.2 and 4.3 (position 2 of Table 1). Rows are `softmax(W_{l+1} x_l)` [rows, E].
///  - Decode: the experts of a row whose score lies above the given percentile of its E scores are candidates.
///  - Prefill: each row votes for its top k; the number of votes is an expert's popularity.
/// Requests come surest first: in decode by the largest score that any row gives, in prefill by votes, then score.
///
/// Complexity: O(rows * (E + m * moves)) for m candidates a row, O(E^2) at worst for the order, O(m) for one row.
/// State: 30 bytes an expert.
///
/// Ambiguities resolved. A percentile of a small set is a rank: with linear interpolation (numpy's default)
/// exactly m = E - 1 - floor(q (E - 1)) of E distinct scores lie strictly above the q-quantile; the m best
/// are taken, also when scores tie. E = 8: 2, E = 32: 8, E = 60: 15, E = 64: 16. In a batch a candidate of
/// any row counts. The paper knows no importance; for selectors that do, it is HOBBIT's (detail::PredictedExperts).
class CrossLayerGate {
 public:
  /// Candidates above this percentile, in whole percent. Fate uses 75.
  std::uint32_t percentile = 75;
  /// In decode, take the top k of a row instead (78.79% against 97.15% in Fate's Table 1 and section 4.2).
  bool plain_top_k = false;

  void reserve(Carver& carve, const Shape& shape) {
    if (percentile > 100)
      detail::fail<ConfigError>("CrossLayerGate: percentile is " + std::to_string(percentile) + ", expected 0 to 100");
    experts_ = shape.experts;
    top_k_ = shape.top_k;
    predicted_.reserve(carve, shape);
  }

  /// How many of a row's experts lie above the percentile.
  FERRY_HD std::uint32_t candidates(std::uint32_t experts) const noexcept {
    return experts - 1 - percentile * (experts - 1) / 100;
  }

  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/,
                               View<const std::uint32_t> /*rows*/) noexcept {}

  FERRY_HD void predict(Phase phase, const Scores& scores, Out<Request>& out) noexcept {
    const bool by_percentile = phase == Phase::decode && !plain_top_k;
    predicted_.clear();
    predicted_.name_best(scores, by_percentile ? candidates(scores.experts_or(experts_)) : scores.top_k_or(top_k_));
    predicted_.write(phase, scores.layer, out);
  }

  [[nodiscard]] const char* check() const noexcept { return predicted_.check(); }

 private:
  detail::PredictedExperts predicted_;
  std::uint16_t experts_ = 0, top_k_ = 0;
};

static_assert(Predictor<CrossLayerGate>);

}  // namespace ferry::inline FERRY_ABI
