/// @file
/// What was predicted for each layer, kept until the real gate speaks: the source of recall and top-1.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/best.hpp"
#include "ferry/detail/expert_set.hpp"
#include "ferry/metrics.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Remembers the latest prediction of each layer and distance, and compares it with what the gate then chooses.
/// State: D * L * (E / 8 + 2 rows + 40) bytes for D distances. O(rows * E) a prediction, O(D * E / 64 + rows * k) a
/// comparison.
class PredictionRecord {
 public:
  void reserve(Carver& carve, const Shape& shape, std::uint16_t depth) {
    layers_ = shape.layers;
    experts_ = shape.experts;
    max_rows_ = shape.max_rows;
    top_k_ = shape.top_k;
    depth_ = depth;
    const std::size_t cells = std::size_t{depth} * shape.layers;
    named_.reserve(carve, static_cast<std::uint32_t>(cells), shape.experts);
    carve(best_, cells * shape.max_rows);
    carve(noted_, cells);
    carve(accuracy_, cells);
    needed_.reserve(carve, 1, shape.experts);
  }

  /// `distance`: layers between the one that predicted and the one predicted, from 1. Beyond the depth: ignored.
  FERRY_HD void note(const Scores& predicted, std::uint16_t distance, View<const Request> requests) noexcept {
    if (distance == 0 || distance > depth_) return;
    const std::uint32_t cell = at(distance, predicted.layer);
    named_.clear(cell);
    for (const Request& r : requests) {
      if (r.want.id.expert < experts_) named_.add(cell, r.want.id.expert);
    }
    const std::uint32_t rows = predicted.select.size / experts_;
    noted_[cell] = {rows, true};
    for (std::uint32_t row = 0; row < rows; ++row) {
      Route best;
      best_of(predicted.select.data + std::size_t{row} * experts_, predicted.experts_or(experts_), 1, &best);
      best_[std::size_t{cell} * max_rows_ + row] = best.expert;
    }
  }

  /// `routes` is [rows, k], of the rows of the step that `rows` names, or all `step_rows` of them if it is empty. A
  /// prediction is of all rows of the step, or of those that the layer has. Any other is not this step's, and ignored.
  /// `best`: [rows] the gate's first choices, or empty if they are the first routes of the rows.
  FERRY_HD void score(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows,
                      std::uint32_t step_rows, const Array<std::uint16_t>& best, PrefetchCounts& count) noexcept {
    const std::uint32_t present = routes.size / top_k_;
    bool nearest = true, marked = false;
    for (std::uint16_t distance = 1; distance <= depth_; ++distance) {
      const std::uint32_t cell = at(distance, layer);
      const Noted noted = noted_[cell];
      noted_[cell] = {};
      const bool whole = noted.rows == step_rows;
      if (!noted.made || (noted.rows != 0 && !whole && noted.rows != present)) continue;
      if (!marked) mark(routes);
      marked = true;
      Accuracy made;
      made.needed = needed_.size(0);
      made.predicted = needed_.common(0, named_, cell);
      made.rows = noted.rows == 0 ? 0 : present;
      for (std::uint32_t i = 0; i < made.rows; ++i) {
        const std::uint32_t row = whole && rows.size > 0 ? rows[i] : i;
        const std::uint16_t first = best.size() > 0 ? best[i] : gate_choice(routes[i * top_k_]);
        made.rows_top1 += first == best_[std::size_t{cell} * max_rows_ + row] ? 1U : 0U;
      }
      accuracy_[cell] += made;
      if (nearest) count.accuracy += made;
      nearest = false;
    }
  }

  /// The step was abandoned: what was predicted for it does not count.
  FERRY_HD void clear() noexcept {
    for (Noted& n : noted_) n = {};
  }

  FERRY_HD std::uint16_t depth() const noexcept { return depth_; }
  /// Of the predictions made for `layer` from `distance` layers before it; none beyond the depth or the layers.
  FERRY_HD Accuracy accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept {
    if (distance == 0 || distance > depth_ || layer >= layers_) return {};
    return accuracy_[at(distance, layer)];
  }

 private:
  struct Noted {
    std::uint32_t rows = 0;
    bool made = false;
  };

  FERRY_HD std::uint32_t at(std::uint16_t distance, std::uint16_t layer) const noexcept {
    return (distance - 1U) * layers_ + layer;
  }
  FERRY_HD void mark(View<const Route> routes) noexcept {
    needed_.clear(0);
    for (const Route& r : routes) {
      if (gate_choice(r) != no_expert) needed_.add(0, gate_choice(r));
    }
  }

  ExpertSets named_;           ///< [depth, layers]
  Array<std::uint16_t> best_;  ///< [depth, layers, rows]
  Array<Noted> noted_;         ///< [depth, layers]
  Array<Accuracy> accuracy_;   ///< [depth, layers]
  ExpertSets needed_;          ///< one
  std::uint32_t layers_ = 0, experts_ = 0, max_rows_ = 0, top_k_ = 0;
  std::uint16_t depth_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
