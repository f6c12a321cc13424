/// @file
/// The rows of a step, grouped by the expert that they chose.
#pragma once
#include <cassert>

#include "ferry/concepts.hpp"
#include "ferry/detail/expert_set.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Turns routes [rows, k] into one request an expert and the list of assignments that each request stands for.
/// O(E / 64 + rows * k), and O(rows * k^2) more for rows whose weights do not descend if `with_unimportance`.
/// State: 4 bytes an expert and an assignment, 8 for 64 experts.
class ExpertGroups {
 public:
  void reserve(Carver& carve, const Shape& shape) {
    top_k_ = shape.top_k;
    chosen_.reserve(carve, 1, shape.experts);
    carve(request_, shape.experts);
    carve(assignments_, std::size_t{shape.max_rows} * shape.top_k);
  }

  /// Appends the requests of a layer to `out`, in ascending expert index; `no_expert` asks for nothing.
  /// `with_unimportance`: also sets Request::unimportance, HOBBIT's Eq. 2.
  template <bool with_unimportance>
  FERRY_HD void gather(std::uint16_t layer, View<const Route> routes, Out<Request>& out) noexcept {
    if (!gather_each_once(layer, routes, out)) gather_shared(layer, routes, out);
    if constexpr (with_unimportance) {
      for (std::uint32_t row = 0; row < routes.size; row += top_k_) rank(routes.part(row, top_k_), out);
    }
  }

  /// Those of a request are [Request::first .. first + rows); each is row * k + rank. As many as routes ask for something.
  FERRY_HD View<const std::uint32_t> assignments() const noexcept { return {assignments_.data(), assigned_}; }

 private:
  /// False, and nothing is appended, if an expert is chosen twice.
  FERRY_HD bool gather_each_once(std::uint16_t layer, View<const Route> routes, Out<Request>& out) noexcept {
    chosen_.clear(0);
    for (std::uint32_t i = 0; i < routes.size; ++i) {
      const std::uint16_t e = routes[i].expert;
      assert(e < request_.size() || e == no_expert);
      if (e == no_expert) continue;
      if (chosen_.has(0, e)) return false;
      chosen_.add(0, e);
      request_[e] = i;  // for now: which route chose it
    }
    std::uint32_t n = 0;
    chosen_.for_each(0, [&](std::uint16_t e) {
      const std::uint32_t route = request_[e];
      request_[e] = out.size;
      assignments_[n] = route;
      Request& r = *out.add();
      r.want.id = {layer, e};
      r.first = n++;
      r.rows = 1;
      if (routes[route].weight > 0.0F) r.importance = routes[route].weight;
      r.confidence = r.unimportance = 1.0F;
    });
    assigned_ = n;
    return true;
  }

  FERRY_HD void gather_shared(std::uint16_t layer, View<const Route> routes, Out<Request>& out) noexcept {
    chosen_.clear(0);
    for (const Route& r : routes) {
      if (r.expert == no_expert) continue;
      request_[r.expert] = chosen_.has(0, r.expert) ? request_[r.expert] + 1 : 1;  // for now: how many chose it
      chosen_.add(0, r.expert);
    }
    std::uint32_t first = 0;
    chosen_.for_each(0, [&](std::uint16_t e) {
      const std::uint32_t rows = request_[e];
      request_[e] = out.size;
      Request& r = *out.add();
      r.want.id = {layer, e};
      r.first = first;
      r.confidence = r.unimportance = 1.0F;
      first += rows;
    });
    assigned_ = first;
    for (std::uint32_t i = 0; i < routes.size; ++i) {
      if (routes[i].expert == no_expert) continue;
      Request& r = out.data[request_[routes[i].expert]];
      assignments_[r.first + r.rows++] = i;
      if (routes[i].weight > r.importance) r.importance = routes[i].weight;
    }
  }

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
      Request& r = out.data[request_[row[i].expert]];
      if (share < r.unimportance) r.unimportance = share;
    }
  }

  ExpertSets chosen_;                 ///< one
  Array<std::uint32_t> request_;      ///< [experts] of those chosen, which request
  Array<std::uint32_t> assignments_;  ///< [rows * k]
  std::uint32_t top_k_ = 0, assigned_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
