/// @file
/// HOBBIT's least high-precision frequently used.
#pragma once
#include "ferry/detail/slot_experts.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert with the fewest high-precision uses in this sequence: to miss those costs the most.
///
/// Source: HOBBIT, section 3.4 and Fig. 11. A use counts also when the expert is absent, and counts outlive eviction.
///
/// Complexity: a use O(1), victim O(layers + experts of one), reset O(experts). State: 12 bytes an expert of the pool's
/// layers, 8 a slot, 40 a layer.
///
/// Ambiguities resolved. High is the variant that serves the use ("the number of times each expert's high-precision
/// version is used"), not the precision that was wanted: where the high version is there, a low one is not fetched.
class Lhu {
 public:
  Precision high = Precision::full;  ///< from this precision on a use is high

  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    carve(uses_, slots_.size());
  }

  FERRY_HD void used(Variant what) noexcept {
    if (what.precision < high) return;
    ++uses_[slots_.index(what.id)];
    slots_.grew(what.id);
  }
  FERRY_HD void reset() noexcept {
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
  Array<std::int64_t> uses_;  ///< [layers, experts], at high precision
};

static_assert(CachePolicy<Lhu>);

}  // namespace ferry::inline FERRY_ABI
