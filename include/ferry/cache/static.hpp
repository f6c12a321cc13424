/// @file
/// What is there stays.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Never evicts: free slots are filled once, by whatever comes first; a full pool refuses every admission.
///
/// Source: the placement of llama.cpp and Fiddler, which fix the experts on the device at the start and compute the
/// others on the CPU. HOBBIT, section 5.4, and Importance-driven, section 6.3, measure against it ("static expert
/// caching", section 6.2 there).
/// A refused expert passes through the stream slots unless the scheduler gives it to the host.
///
/// Complexity: O(1). No state.
/// Ambiguities resolved. Which experts it holds is the engine's choice, by what it loads first; without one, it holds
/// what the first steps ask for.
struct StaticResidency {
  static void reserve(Carver& /*carve*/, const PoolShape& /*pool*/) {}
  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD static std::uint32_t victim(Variant /*incoming*/, Barred /*barred*/) noexcept { return no_slot; }
  FERRY_HD static void replace(std::uint32_t /*slot*/, Variant /*what*/, bool /*demand*/) noexcept {}
};

static_assert(CachePolicy<StaticResidency>);

}  // namespace ferry::inline FERRY_ABI
