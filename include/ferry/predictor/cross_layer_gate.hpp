/// @file
/// Fate's cross-layer expert prediction.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/error.hpp"
#include "ferry/router/best.hpp"

namespace ferry {

/// The next layer's gate, applied to this layer's gate input, names the experts that the next layer will
/// need: adjacent gate inputs are alike.
///
/// Source: Fate, sections 4.2 and 4.3 (position 2 of Table 1). Rows are `softmax(W_{l+1} x_l)` [rows, E].
///  - Decode: the experts of a row whose score lies above the given percentile of its E scores are candidates.
///  - Prefill: each row votes for its top k; the number of votes is an expert's popularity.
/// Requests come surest first: in decode by the largest score that any row gives, in prefill by votes, then score.
///
/// Complexity: O(rows * (E + m * moves)) for m candidates a row, O(E^2) at worst for the order, O(m) for one row.
/// State: 18 bytes an expert.
///
/// Ambiguities resolved. A percentile of a small set is a rank: with linear interpolation (numpy's default)
/// exactly m = E - 1 - floor(q (E - 1)) of E distinct scores lie strictly above the q-quantile; the m best
/// are taken, also when scores tie. E = 8: 2, E = 32: 8, E = 60: 15, E = 64: 16. In a batch a candidate of
/// any row counts.
class CrossLayerGate {
 public:
  /// Candidates above this percentile, in whole percent. Fate uses 75.
  std::uint32_t percentile = 75;
  /// In decode, take the top k of a row instead (78.79% against 97.15% in Fate's Table 1 and section 4.2).
  bool plain_top_k = false;

  void reserve(Carver& carve, const Shape& shape) {
    if (percentile > 100) throw ConfigError("CrossLayerGate: percentile is 0 to 100");
    experts_ = shape.experts;
    top_k_ = shape.top_k;
    carve(found_, shape.experts);
    carve(named_, shape.experts);
    carve(best_, shape.experts);
  }

  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/) noexcept {}

  FERRY_HD void predict(Phase phase, const Scores& scores, Out<Request>& out) noexcept {
    const std::uint32_t candidates = phase == Phase::decode && !plain_top_k
                                         ? experts_ - 1 - percentile * (experts_ - 1U) / 100
                                         : static_cast<std::uint32_t>(top_k_);
    for (Found& f : found_) f = {};
    std::uint32_t named = 0;
    const std::uint32_t rows = scores.select.size / experts_;
    for (std::uint32_t row = 0; row < rows; ++row) {
      const float* row_scores = scores.select.data + std::size_t{row} * experts_;
      best_of(row_scores, experts_, candidates, best_.data());
      for (std::uint32_t i = 0; i < candidates; ++i) {
        const std::uint16_t e = best_[i].expert;
        const float score = row_scores[e];
        if (score != score) break;  // NaN, as are all that follow: foretells nothing
        Found& f = found_[e];
        if (f.rows == 0 || score > f.score) f.score = score;
        if (f.rows++ == 0) named_[named++] = e;
      }
    }
    sort(phase, named);
    for (std::uint32_t i = 0; i < named; ++i) {
      const Found& f = found_[named_[i]];
      Request r;
      r.want.id = {scores.layer, named_[i]};
      r.rows = f.rows;
      r.importance = f.score;
      r.confidence = phase == Phase::decode ? f.score : static_cast<float>(f.rows);
      if (!out.push(r)) return;
    }
  }

 private:
  struct Found {
    std::uint32_t rows = 0;  ///< that chose it
    float score = 0.0F;      ///< the largest
  };

  /// Surer, or equally sure with the lower index.
  FERRY_HD bool before(Phase phase, std::uint16_t a, std::uint16_t b) const noexcept {
    const Found &x = found_[a], &y = found_[b];
    if (phase == Phase::prefill && x.rows != y.rows) return x.rows > y.rows;
    return x.score != y.score ? x.score > y.score : a < b;
  }

  /// By insertion: what one row named is in order already.
  FERRY_HD void sort(Phase phase, std::uint32_t named) noexcept {
    for (std::uint32_t i = 1; i < named; ++i) {
      const std::uint16_t e = named_[i];
      std::uint32_t at = i;
      for (; at > 0 && before(phase, e, named_[at - 1]); --at) named_[at] = named_[at - 1];
      named_[at] = e;
    }
  }

  Array<Found> found_;          ///< [experts]
  Array<std::uint16_t> named_;  ///< [experts], those found
  Array<Route> best_;           ///< [experts], of one row
  std::uint16_t experts_ = 0, top_k_ = 0;
};

static_assert(Predictor<CrossLayerGate>);

}  // namespace ferry
