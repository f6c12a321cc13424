/// @file
/// Nobody waits for a copy if the host would be done sooner.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode, puts each expert that is not there where the layer ends earliest. What is on its way can be waited for, or
/// computed on the host; of the rest, those in front are loaded, behind what is on its way, and the host computes the
/// others. In prefill everything is loaded. Behind the plan the link brings, while it has nothing else to do, what the
/// cache policy wants most (`promotes`): nobody waits for it, and it serves later tokens.
///
/// Over the ways to do it, the least of max(link, host): where nothing on its way is waited for, the host's time for all
/// of them; where it is, with n loads behind it, the link's remaining time and n copies beside the host's time for the
/// others. The misses must come with rows descending: compose it with BatchSizeOrder.
///
/// Source: ours. What llama.cpp and Fiddler do, and HybriMoE's split, are two of the ways that it weighs.
/// Complexity: O(misses), no state.
///
/// Ambiguities resolved. Of equally good ways the one that loads less. Costs that are unknown: without the host's time
/// everything goes to the host, which is how the engine comes to measure it; without a copy's nothing is loaded.
struct EarliestFinish {
  static constexpr bool needs_ordered_batches = true;
  static constexpr bool promotes = true;

  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    return split(phase, misses, {}, 0).loads;
  }
  /// `arriving`: those of the layer that are on their way. `link_ns`: until what is on the link has landed.
  FERRY_HD static Split split(Phase phase, View<const Request> misses, View<const Request> arriving,
                              Nanoseconds link_ns) noexcept {
    if (phase == Phase::prefill) return {misses.size, true};
    Nanoseconds host = 0, late = 0;
    for (const Request& r : misses) host += r.host_ns * r.rows;
    for (const Request& r : arriving) late += r.host_ns * r.rows;
    Split best{0, arriving.size == 0};
    Nanoseconds least = host + late;
    if (least == 0) return best;
    Nanoseconds link = link_ns;
    for (std::uint32_t n = 0; n <= misses.size; ++n) {
      const Nanoseconds later = link > host ? link : host;
      if (later < least && (n > 0 || arriving.size > 0)) {
        least = later;
        best = {n, true};
      }
      if (n == misses.size || misses[n].copy_ns == 0) break;
      link += misses[n].copy_ns;
      host -= misses[n].host_ns * misses[n].rows;
    }
    return best;
  }
};

static_assert(Placement<EarliestFinish>);

}  // namespace ferry::inline FERRY_ABI
