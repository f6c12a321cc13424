/// @file
/// One precision for everything.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Every expert crosses at the same precision, by default the model's own.
///
/// Source: none; what an engine does that stores each expert once.
/// Complexity: O(requests). No state.
struct FixedPrecision {
  Precision precision = Precision::full;  ///< of every expert

  FERRY_HD void select(Phase /*phase*/, bool /*demand*/, View<Request> requests) const noexcept {
    for (Request& r : requests) r.want.precision = precision;
  }
  FERRY_HD std::uint8_t precisions() const noexcept {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(precision));
  }
};

static_assert(QuantSelector<FixedPrecision>);

}  // namespace ferry::inline FERRY_ABI
