/// @file
/// Fate's cross-layer expert prediction.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry {

/// The next layer's gate, applied to this layer's gate input, names the experts that the next layer will
/// need: adjacent gate inputs are alike.
///
/// Source: Fate, sections 4.2 and 4.3 (position 2 of Table 1). Rows are `softmax(W_{l+1} x_l)` [rows, E].
///  - Decode: the experts of a row whose score lies above the given percentile of its E scores are candidates.
///  - Prefill: each row votes for its top k; the number of votes is an expert's popularity.
/// Requests come surest first: in decode by the largest score that any row gives, in prefill by votes, then score.
///
/// Complexity: O(rows * E * m) for m candidates a row, O(E^2) at worst for the order. State: 12 bytes an expert.
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
  }

  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/) noexcept {}

  FERRY_HD void predict(Phase phase, const Scores& scores, Out<Request>& out) noexcept {
    const std::uint32_t candidates = phase == Phase::decode && !plain_top_k
                                         ? experts_ - 1 - percentile * (experts_ - 1U) / 100
                                         : static_cast<std::uint32_t>(top_k_);
    for (Found& f : found_) f = {};
    const std::uint32_t rows = scores.select.size / experts_;
    for (std::uint32_t row = 0; row < rows; ++row) {
      take_best(scores.select.part(row * experts_, experts_), candidates, row + 1);
    }
    // Selection sort over few candidates: surest first, the lower index where equal.
    for (;;) {
      std::uint32_t best = experts_;
      for (std::uint32_t e = 0; e < experts_; ++e) {
        if (found_[e].rows > 0 && (best == experts_ || surer(phase, found_[e], found_[best]))) best = e;
      }
      if (best == experts_) return;
      Request r;
      r.want.id = {scores.layer, static_cast<std::uint16_t>(best)};
      r.rows = found_[best].rows;
      r.importance = found_[best].score;
      r.confidence = phase == Phase::decode ? found_[best].score : static_cast<float>(r.rows);
      found_[best].rows = 0;
      if (!out.push(r)) return;
    }
  }

 private:
  struct Found {
    std::uint32_t rows = 0;  ///< that chose it
    std::uint32_t last = 0;  ///< the last of them, from 1
    float score = 0.0F;      ///< the largest
  };

  FERRY_HD static bool surer(Phase phase, const Found& a, const Found& b) noexcept {
    if (phase == Phase::prefill && a.rows != b.rows) return a.rows > b.rows;
    return a.score > b.score;
  }

  FERRY_HD void take_best(View<const float> row_scores, std::uint32_t count, std::uint32_t row) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint32_t best = experts_;
      for (std::uint32_t e = 0; e < experts_; ++e) {
        if (found_[e].last == row || !(row_scores[e] == row_scores[e])) continue;
        if (best == experts_ || row_scores[e] > row_scores[best]) best = e;
      }
      if (best == experts_) return;  // only NaN is left, and NaN foretells nothing
      Found& f = found_[best];
      f.last = row;
      if (f.rows == 0 || row_scores[best] > f.score) f.score = row_scores[best];
      ++f.rows;
    }
  }

  Array<Found> found_;
  std::uint16_t experts_ = 0, top_k_ = 0;
};

static_assert(Predictor<CrossLayerGate>);

}  // namespace ferry
