/// @file
/// Fate's order of copies.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/order/batch_size_order.hpp"

namespace ferry::inline FERRY_ABI {

/// In prefill the most popular expert first: while its many tokens are computed, the next ones arrive. In decode the
/// order stays as it came.
///
/// Source: Fate, section 4.3, Figure 6. Complexity: that of BatchSizeOrder. No state.
struct PopularityOrder {
  FERRY_HD static void order(Phase phase, bool /*demand*/, View<Request> requests) noexcept {
    if (phase == Phase::prefill) BatchSizeOrder::by_rows(requests);
  }
};

static_assert(CopyOrder<PopularityOrder>);

}  // namespace ferry::inline FERRY_ABI
