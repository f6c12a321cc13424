/// @file
/// Large batches first.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry {

/// By the number of rows that want an expert, descending; equal ones keep their order.
///
/// Source: Importance-driven expert scheduling, section 5.4: Algorithm 2 sorts so before it splits.
/// Complexity: by insertion, O(n) for requests that are in order, O(n^2) moves at worst. No state.
struct BatchSizeOrder {
  FERRY_HD static void order(Phase /*phase*/, View<Request> requests) noexcept {
    for (std::uint32_t i = 1; i < requests.size; ++i) {
      if (requests[i - 1].rows >= requests[i].rows) continue;
      const Request r = requests[i];
      std::uint32_t at = i;
      for (; at > 0 && requests[at - 1].rows < r.rows; --at) requests[at] = requests[at - 1];
      requests[at] = r;
    }
  }
};

static_assert(CopyOrder<BatchSizeOrder>);

}  // namespace ferry
