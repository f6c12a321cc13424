/// @file
/// The best split of a sorted list between link and host.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/saturating.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode, loads the prefix of the misses for which the later of link and host finishes earliest:
/// min over n of max(sum of copy_ns of the first n, sum of host_ns * rows of the others). In prefill everything is
/// loaded. The misses must come with rows descending: compose it with BatchSizeOrder.
///
/// Source: after HybriMoE (Zhong et al., 2025), which simulates the timelines of GPU, CPU and link within a layer: the
/// link takes the uncached experts with the most rows first, the CPU those with the fewest, each next one goes where it
/// finishes earlier.
///
/// Complexity: O(misses), no state.
///
/// Deviations. Instead of simulating step by step, the meeting point is found exactly; HybriMoE's idle CPU may also
/// take cached experts, which this `split` does not see.
/// Ambiguities resolved. Of equally good prefixes the longest is loaded: what is loaded may be used again. Costs that
/// are unknown count as 0: without copy costs everything is loaded, without host costs everything runs on the host,
/// which is how the engine comes to measure it.
struct BestSplit {
  static constexpr bool needs_ordered_batches = true;

  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    if (phase == Phase::prefill) return misses.size;
    Nanoseconds load = 0, host = 0;
    for (const Request& r : misses) host += on_host(r);
    std::uint32_t best = 0;
    Nanoseconds least = host;
    for (std::uint32_t i = 0; i < misses.size; ++i) {
      load = detail::sum(load, misses[i].copy_ns);
      host -= on_host(misses[i]);
      const Nanoseconds later = load > host ? load : host;
      if (later > least) continue;
      least = later;
      best = i + 1;
    }
    return best;
  }

 private:
  FERRY_HD static Nanoseconds on_host(const Request& r) noexcept {
    return detail::bounded(detail::product(r.host_ns, r.rows));
  }
};

static_assert(Placement<BestSplit>);

}  // namespace ferry::inline FERRY_ABI
