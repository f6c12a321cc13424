/// @file
/// Least frequently used.
#pragma once
#include "ferry/detail/slot_experts.hpp"

namespace ferry::inline FERRY_ABI {

/// How long uses are counted.
enum class CountOver : std::uint8_t {
  sequence,  ///< until the last live sequence ends
  model      ///< for ever
};

/// Evicts the expert with the fewest uses. A use counts also when the expert is absent, and counts outlive eviction.
///
/// Source: HOBBIT, section 3.4 (sequence-level, which its Fig. 18-(b) finds better by 4.5% of hits) and the LFU of
/// MoE-Infinity and EdgeMoE, as HOBBIT names it (model-level).
///
/// Complexity: a use O(1), victim O(layers + experts of one), reset O(experts). State: 12 bytes an expert of the pool's
/// layers, 8 a slot, 40 a layer.
///
/// Ambiguities resolved. A use is counted once an expert and step, however many rows chose it, and at any precision,
/// also when another pool or the host serves it. A prefetch is not a use. Counts have 64 bits: even those that are never
/// reset do not overflow.
class Lfu {
 public:
  CountOver over = CountOver::sequence;  ///< since when uses count

  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    carve(uses_, slots_.size());
  }

  FERRY_HD void used(Variant what) noexcept {
    ++uses_[slots_.index(what.id)];
    slots_.grew(what.id);
  }
  FERRY_HD void reset() noexcept {
    if (over == CountOver::model) return;
    for (std::int64_t& n : uses_) n = 0;
    slots_.changed();
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) noexcept { return slots_.least(barred, key()); }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, uses_[slots_.index(what.id)]);
  }
  FERRY_HD void finished(std::uint16_t /*layer*/) noexcept { slots_.resolve(key()); }

  [[nodiscard]] const char* check() const noexcept { return slots_.check(key()); }

 private:
  FERRY_HD detail::KeyIn key() const noexcept { return {uses_.data()}; }

  detail::SlotExperts slots_;
  Array<std::int64_t> uses_;  ///< [layers, experts]
};

static_assert(CachePolicy<Lfu>);

}  // namespace ferry::inline FERRY_ABI
