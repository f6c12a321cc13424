/// @file
/// HOBBIT's least high-precision frequently used.
#pragma once
#include "ferry/cache/slot_experts.hpp"
#include "ferry/cache/use_record.hpp"

namespace ferry {

/// Evicts the expert with the fewest high-precision uses in this sequence: to miss those costs the most.
///
/// Source: HOBBIT, section 3.4 and Fig. 11. A use counts also when the expert is absent, and counts outlive eviction.
///
/// Complexity: a use O(1), victim O(slots), reset O(experts). State: 24 bytes an expert of the pool's layers, 4 a slot.
///
/// Ambiguities resolved. High is the variant that serves the use ("the number of times each expert's high-precision
/// version is used"), not the precision that was wanted: where the high version is there, a low one is not fetched.
class Lhu {
 public:
  Precision high = Precision::full;  ///< from this precision on a use is high

  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    uses_.reserve(carve, slots_.size());
  }

  FERRY_HD void used(Variant what) noexcept { uses_.note(slots_.index(what.id), what.precision >= high); }
  FERRY_HD void reset() noexcept { uses_.reset(); }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    return slots_.least(barred, [this](ExpertId id) { return uses_[slots_.index(id)].high; });
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept { slots_.put(slot, what.id); }

 private:
  SlotExperts slots_;
  UseRecord uses_;
};

static_assert(CachePolicy<Lhu>);

}  // namespace ferry
