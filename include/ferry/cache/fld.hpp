/// @file
/// HOBBIT's farthest layer distance.
#pragma once
#include "ferry/detail/slot_experts.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert whose layer lies farthest ahead of the incoming expert's: nearer layers are needed sooner.
///
/// Source: HOBBIT, section 3.4 and Eq. 3: the largest (l_t - l_i + l_n) mod l_n, where l_t is the layer of the expert
/// in the slot, l_i that of the incoming one and l_n the number of layers. It makes sense for a pool over many layers;
/// in a pool of one layer all distances are 0, and the lowest slot goes.
///
/// Complexity: replace O(1), victim O(layers + experts of one). State: 8 bytes a slot, 4 an expert, 48 a layer.
///
/// Ambiguities resolved. l_n is the number of the pool's layers (HOBBIT's pools span all layers), and distances are
/// cyclic within the pool: from its last layer to its first is 1. As the formula is printed, the incoming expert's own
/// layer has distance 0, so its experts go last. l_i is the layer used last, also when a prefetch for a later layer asks
/// for room ("the currently used expert"): what lies between would be evicted first otherwise, and is needed first.
class Fld {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    nearness_.reserve(carve, pool);
  }

  FERRY_HD void used(Variant what) noexcept {
    here_ = what.id;
    any_used_ = true;
  }
  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) noexcept {
    const std::uint16_t now = any_used_ ? here_.layer : incoming.id.layer;
    const std::int64_t* const near = nearness_(slots_.layer(now), 1);
    return slots_.least(
        barred, [](std::size_t /*at*/) { return std::int64_t{0}; },
        [near](std::int64_t key, std::uint32_t layer) { return key + near[layer]; });
  }
  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept { slots_.put(slot, what.id, 0); }

  [[nodiscard]] const char* check() const noexcept {
    if (const char* broken = nearness_.check()) return broken;
    return slots_.check([](std::size_t /*at*/) { return std::int64_t{0}; });
  }

 private:
  detail::SlotExperts slots_;  ///< all alike within a layer
  detail::Nearness nearness_;
  ExpertId here_;  ///< used last
  bool any_used_ = false;
};

static_assert(CachePolicy<Fld>);

}  // namespace ferry::inline FERRY_ABI
