/// @file
/// What was foretold for each layer, kept until the real gate speaks: the source of recall and top-1.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/metrics.hpp"

namespace ferry {

/// Remembers the latest prediction of each layer and compares it with what the layer then asks for.
/// State: L * (E + 2 rows + 4) bytes. O(rows * E) a prediction, O(requests + rows) a comparison.
class PredictionRecord {
 public:
  void reserve(Carver& carve, const Shape& shape) {
    experts_ = shape.experts;
    max_rows_ = shape.max_rows;
    top_k_ = shape.top_k;
    carve(named_, std::size_t{shape.layers} * shape.experts);
    carve(best_, std::size_t{shape.layers} * shape.max_rows);
    carve(rows_, shape.layers);
  }

  FERRY_HD void note(const Scores& predicted, View<const Request> requests) noexcept {
    std::uint8_t* named = named_.data() + std::size_t{predicted.layer} * experts_;
    for (std::uint32_t e = 0; e < experts_; ++e) named[e] = 0;
    for (const Request& r : requests) named[r.want.id.expert] = 1;
    std::uint16_t* best = best_.data() + std::size_t{predicted.layer} * max_rows_;
    const std::uint32_t rows = rows_[predicted.layer] = predicted.select.size / experts_;
    for (std::uint32_t row = 0; row < rows; ++row) {
      const float* s = predicted.select.data + std::size_t{row} * experts_;
      best[row] = 0;
      for (std::uint16_t e = 1; e < experts_; ++e) {
        if (s[e] > s[best[row]] || s[best[row]] != s[best[row]]) best[row] = e;
      }
    }
  }

  /// `routes` is [rows, k]. A prediction made for another number of rows is not this step's, and is ignored.
  FERRY_HD void score(std::uint16_t layer, View<const Request> requests, View<const Route> routes,
                      PrefetchCounts& count) noexcept {
    const std::uint32_t rows = rows_[layer];
    rows_[layer] = 0;
    if (rows == 0 || routes.size != rows * top_k_) return;
    const std::uint8_t* named = named_.data() + std::size_t{layer} * experts_;
    const std::uint16_t* best = best_.data() + std::size_t{layer} * max_rows_;
    count.needed += requests.size;
    for (const Request& r : requests) count.needed_foretold += named[r.want.id.expert];
    count.rows += rows;
    for (std::uint32_t row = 0; row < rows; ++row) {
      count.rows_top1 += routes[row * top_k_].expert == best[row] ? 1 : 0;
    }
  }

  /// The step was abandoned: what was foretold for it does not count.
  FERRY_HD void clear() noexcept {
    for (std::uint32_t& rows : rows_) rows = 0;
  }

 private:
  Array<std::uint8_t> named_;  ///< [layers, experts]
  Array<std::uint16_t> best_;  ///< [layers, rows]
  Array<std::uint32_t> rows_;  ///< [layers], 0: nothing foretold
  std::uint32_t experts_ = 0, max_rows_ = 0, top_k_ = 0;
};

}  // namespace ferry
