/// @file
/// The rows of a step, grouped by the expert that they chose.
#pragma once
#include <cassert>

#include "ferry/concepts.hpp"
#include "ferry/expert_set.hpp"

namespace ferry {

/// Turns routes [rows, k] into one request an expert and the list of assignments that each request stands for.
/// O(E / 64 + rows * k), and O(rows * k^2) more for rows whose weights do not descend if `with_unimportance`.
/// State: 4 bytes an expert and an assignment, 8 for 64 experts.
class ExpertGroups {
 public:
  void reserve(Carver& carve, const Shape& shape) {
    top_k_ = shape.top_k;
    chosen_.reserve(carve, 1, shape.experts);
    carve(count_, shape.experts);
    carve(assignments_, std::size_t{shape.max_rows} * shape.top_k);
  }

  /// Appends the requests of a layer to `out`, in ascending expert index; `no_expert` asks for nothing.
  /// `with_unimportance`: also sets Request::unimportance, HOBBIT's Eq. 2.
  template <bool with_unimportance>
  FERRY_HD void gather(std::uint16_t layer, View<const Route> routes, Out<Request>& out) noexcept {
    chosen_.clear(0);
    for (const Route& r : routes) {
      assert(r.expert < count_.size() || r.expert == no_expert);
      if (r.expert == no_expert) continue;
      count_[r.expert] = chosen_.has(0, r.expert) ? count_[r.expert] + 1 : 1;
      chosen_.add(0, r.expert);
    }
    std::uint32_t first = 0;
    chosen_.for_each(0, [&](std::uint16_t e) {
      Request& r = *out.add();
      r.want.id = {layer, e};
      r.first = first;
      r.confidence = 1.0F;
      r.unimportance = 1.0F;
      first += count_[e];
      count_[e] = out.size - 1;  // from here on: which request the expert has
    });
    for (std::uint32_t i = 0; i < routes.size; ++i) {
      if (routes[i].expert == no_expert) continue;
      Request& r = out.data[count_[routes[i].expert]];
      assignments_[r.first + r.rows++] = i;
      if (routes[i].weight > r.importance) r.importance = routes[i].weight;
    }
    if constexpr (with_unimportance) {
      for (std::uint32_t row = 0; row < routes.size; row += top_k_) rank(routes.part(row, top_k_), out);
    }
  }

  /// Those of a request are `[first .. first + rows)`; each is row * k + rank.
  FERRY_HD const std::uint32_t* assignments() const noexcept { return assignments_.data(); }

 private:
  /// Of one row: which share of its weights goes to experts ranked above each.
  FERRY_HD void rank(View<const Route> row, Out<Request>& out) noexcept {
    float sum = 0.0F;
    bool descends = true;
    for (std::uint32_t i = 0; i < row.size; ++i) {
      sum += row[i].weight;
      descends = descends && (i == 0 || row[i].weight <= row[i - 1].weight);
    }
    float above = 0.0F;  // summed in the order of `sum`: never more than it, also after rounding
    for (std::uint32_t i = 0; i < row.size; ++i) {
      if (row[i].expert == no_expert) continue;
      float share = above;
      if (!descends) {  // `select` and `weight` rank the experts differently
        share = 0.0F;
        for (std::uint32_t j = 0; j < row.size; ++j) {
          if (row[j].weight > row[i].weight || (row[j].weight == row[i].weight && j < i)) share += row[j].weight;
        }
      }
      above += row[i].weight;
      share = share > 0.0F ? share / sum : 0.0F;
      if (share != share) share = 0.0F;  // what is not a number counts as important
      Request& r = out.data[count_[row[i].expert]];
      if (share < r.unimportance) r.unimportance = share;
    }
  }

  ExpertSets chosen_;                 ///< one
  Array<std::uint32_t> count_;        ///< [experts] of those chosen
  Array<std::uint32_t> assignments_;  ///< [rows * k]
  std::uint32_t top_k_ = 0;
};

}  // namespace ferry
