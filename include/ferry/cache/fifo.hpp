/// @file
/// First in, first out.
#pragma once
#include "ferry/cache/lru.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the slot that was filled longest ago, however often its expert was used since: Lru without the touches.
///
/// Source: textbook. A prefetch enters like a demand load.
///
/// Complexity: touch and replace O(1); victim O(1 + barred slots at the end). State: 8 bytes a slot.
class FifoCache {
 public:
  void reserve(Carver& carve, const PoolShape& pool) { filled_.reserve(carve, pool); }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}

  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) const noexcept {
    return filled_.victim(incoming, barred);
  }

  FERRY_HD void replace(std::uint32_t slot, Variant what, bool demand) noexcept { filled_.replace(slot, what, demand); }

  [[nodiscard]] const char* check() const noexcept { return filled_.check(); }

 private:
  Lru filled_;
};

static_assert(CachePolicy<FifoCache>);

}  // namespace ferry::inline FERRY_ABI
