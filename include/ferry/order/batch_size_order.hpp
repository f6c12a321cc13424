/// @file
/// Large batches first.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Sorts what the gate asks for by the number of rows that want an expert, descending. Of equal ones, the expert with which a
/// place gains most (`Request::gain_ns`) comes first, where the cache policy gives it; otherwise they keep their order.
/// Prefetches, which come surest first, always keep theirs.
///
/// Source: Importance-driven expert scheduling, section 5.4: Algorithm 2 sorts so before it splits.
/// Complexity: by insertion, O(n) for requests that are in order, O(n^2) moves at worst. No state.
struct BatchSizeOrder {
  static constexpr bool orders_batches = true;

  FERRY_HD static void order(Phase /*phase*/, bool demand, View<Request> requests) noexcept {
    if (demand) by_rows(requests);
  }

  /// The most rows first, then what gains most; equal ones stay in order.
  FERRY_HD static void by_rows(View<Request> requests) noexcept {
    for (std::uint32_t i = 1; i < requests.size; ++i) {
      if (!is_before(requests[i], requests[i - 1])) continue;
      const Request r = requests[i];
      std::uint32_t at = i;
      for (; at > 0 && is_before(r, requests[at - 1]); --at) requests[at] = requests[at - 1];
      requests[at] = r;
    }
  }

 private:
  FERRY_HD static bool is_before(const Request& a, const Request& b) noexcept {
    return a.rows != b.rows ? a.rows > b.rows : a.gain_ns > b.gain_ns;
  }
};

static_assert(CopyOrder<BatchSizeOrder>);

}  // namespace ferry::inline FERRY_ABI
