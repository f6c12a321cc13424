/// @file
/// The CPU-load balancer of Importance-driven expert scheduling.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/saturating.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode, splits the misses between link and host by two pointers that walk towards each other: while the loads
/// so far cost no more than the host's work so far, load the next largest batch, otherwise compute the next smallest
/// on the host. In prefill everything is loaded.
///
/// Source: Importance-driven expert scheduling, section 5.4, Algorithm 2: a greedy aim at min max(T_load, T_cpu).
/// A load costs `Request::copy_ns`, the host `Request::host_ns` times rows. The misses must come with rows descending:
/// compose it with BatchSizeOrder, the algorithm's own sort.
///
/// Everything left of the left pointer is loaded, everything right of the right one runs on the host, and they stop
/// where they meet: the loaded ones are a prefix, and its length is the answer.
///
/// How good it is: its cost exceeds that of the best prefix by at most the largest single cost. Let L and H be the two
/// sums. Each step adds to one that is not the larger, so in the end |L - H| is at most the largest single cost. A
/// longer prefix costs at least L, a shorter one at least H, so no prefix costs less than min(L, H). If all copies cost
/// the same, and a row of any of them costs the same on the host, the best prefix is the best of all 2^n splits:
/// j loads leave the host least when they are the j largest batches.
///
/// Complexity: O(misses), no state.
///
/// Ambiguities resolved. The first miss is always loaded, also where the host would be faster: as printed. A cost that
/// is unknown counts as 0: without copy costs everything is loaded; without host costs all but the first run on the
/// host, which is how the engine comes to measure it.
struct TwoPointer {
  static constexpr bool needs_ordered_batches = true;

  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    if (phase == Phase::prefill) return misses.size;
    Nanoseconds load = 0, host = 0;
    std::uint32_t left = 0, right = misses.size;
    while (left < right) {
      if (load <= host) {
        load = detail::sum(load, misses[left++].copy_ns);
      } else {
        --right;
        host = detail::sum(host, detail::product(misses[right].host_ns, misses[right].rows));
      }
    }
    return left;
  }
};

static_assert(Placement<TwoPointer>);

}  // namespace ferry::inline FERRY_ABI
