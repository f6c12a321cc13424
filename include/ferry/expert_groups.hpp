/// @file
/// The rows of a step, grouped by the expert that they chose.
#pragma once
#include <cassert>

#include "ferry/concepts.hpp"

namespace ferry {

/// Turns routes [rows, k] into one request an expert and the list of assignments that each request stands for.
/// O(E + rows * k). State: 4 bytes an expert and an assignment.
class ExpertGroups {
 public:
  void reserve(Carver& carve, const Shape& shape) {
    carve(count_, shape.experts);
    carve(assignments_, std::size_t{shape.max_rows} * shape.top_k);
  }

  /// Appends the requests of a layer to `out`, in ascending expert index; `no_expert` asks for nothing.
  FERRY_HD void gather(std::uint16_t layer, View<const Route> routes, Out<Request>& out) noexcept {
    for (std::uint32_t& n : count_) n = 0;
    for (const Route& r : routes) {
      assert(r.expert < count_.size() || r.expert == no_expert);
      if (r.expert != no_expert) ++count_[r.expert];
    }
    std::uint32_t first = 0;
    for (std::uint16_t e = 0; e < count_.size(); ++e) {
      if (count_[e] == 0) continue;
      Request r;
      r.want.id = {layer, e};
      r.first = first;
      r.confidence = 1.0F;
      first += count_[e];
      count_[e] = out.size;  // from here on: which request the expert has
      out.push(r);
    }
    for (std::uint32_t i = 0; i < routes.size; ++i) {
      if (routes[i].expert == no_expert) continue;
      Request& r = out.data[count_[routes[i].expert]];
      assignments_[r.first + r.rows++] = i;
      if (routes[i].weight > r.importance) r.importance = routes[i].weight;
    }
  }

  /// Those of a request are `[first .. first + rows)`; each is row * k + rank.
  FERRY_HD const std::uint32_t* assignments() const noexcept { return assignments_.data(); }

 private:
  Array<std::uint32_t> count_;        ///< [experts]
  Array<std::uint32_t> assignments_;  ///< [rows * k]
};

}  // namespace ferry
