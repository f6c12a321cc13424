/// @file
/// What a layer chose, until all have been told.
#pragma once
#include <cassert>

#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The routes [rows, k] of the layer planned last. State: 12 bytes a route and 4 a row.
class LayerRoutes {
 public:
  void reserve(Carver& carve, const Shape& shape) {
    carve(routes_, std::size_t{shape.max_rows} * shape.top_k);
    carve(rows_, shape.max_rows);
  }

  /// Room for those of a layer.
  FERRY_HD Out<Route> room() noexcept { return {routes_.data(), routes_.size(), 0}; }
  /// Those that an engine's own top-k has made.
  FERRY_HD View<Route> copy(View<const Route> routes) noexcept {
    assert(routes.size <= routes_.size());
    for (std::uint32_t i = 0; i < routes.size; ++i) routes_[i] = routes[i];
    return {routes_.data(), routes.size};
  }
  /// Nobody computes it. The gate's choice stays known.
  FERRY_HD void leave_out(std::uint32_t route) noexcept {
    routes_[route] = {no_expert, 0.0F, gate_choice(routes_[route])};
  }

  /// Keeps the first `count` routes, which are a layer's, for `tell`. `rows`: which rows of the step it has; empty: all.
  FERRY_HD void keep(std::uint32_t count, View<const std::uint32_t> rows) noexcept {
    untold_ = count;
    row_count_ = rows.size;
    for (std::uint32_t i = 0; i < rows.size; ++i) rows_[i] = rows[i];  // the engine's own may be gone by then
  }
  /// Calls `f(routes, rows)` for those that were kept, once.
  template <class F>
  FERRY_HD void tell(const F& f) noexcept {
    if (untold_ == 0) return;
    const std::uint32_t count = untold_;
    untold_ = 0;
    f(View<const Route>{routes_.data(), count}, View<const std::uint32_t>{rows_.data(), row_count_});
  }

 private:
  Array<Route> routes_;        ///< [rows, k]
  Array<std::uint32_t> rows_;  ///< [rows], which of the step; none if a layer has all of them
  std::uint32_t untold_ = 0, row_count_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
