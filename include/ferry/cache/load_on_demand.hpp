/// @file
/// No cache at all.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Keeps nothing: every expert that a layer needs is copied for that layer, through the stream slots.
///
/// Source: the "load on demand" baseline of Fate (section 5.1).
/// Complexity: O(1). No state.
struct LoadOnDemand {
  static constexpr bool caches = false;

  static void reserve(Carver& /*carve*/, const PoolShape& /*pool*/) {}
  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD static std::uint32_t victim(Variant /*incoming*/, Barred /*barred*/) noexcept { return no_slot; }
  FERRY_HD static void replace(std::uint32_t /*slot*/, Variant /*what*/, bool /*demand*/) noexcept {}
};

static_assert(CachePolicy<LoadOnDemand>);

}  // namespace ferry::inline FERRY_ABI
