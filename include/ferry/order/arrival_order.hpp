/// @file
/// Copies in the order in which they were asked for.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Leaves the order as it came.
///
/// Source: none; the baseline that orders are measured against.
/// Complexity: O(1). No state.
struct ArrivalOrder {
  FERRY_HD static void order(Phase /*phase*/, bool /*demand*/, View<Request> /*requests*/) noexcept {}
};

static_assert(CopyOrder<ArrivalOrder>);

}  // namespace ferry::inline FERRY_ABI
