/// @file
/// Copies in the order in which they were asked for.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Leaves the order as it came. O(1), no state.
struct ArrivalOrder {
  FERRY_HD static void order(Phase /*phase*/, bool /*demand*/, View<Request> /*requests*/) noexcept {}
};

static_assert(CopyOrder<ArrivalOrder>);

}  // namespace ferry::inline FERRY_ABI
