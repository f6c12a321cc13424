/// @file
/// Which expert sits in which slot of a pool: what policies that rank experts share.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry {

/// The experts of a pool by slot, and where each expert of the pool's layers has its place in an array of
/// [layers, experts].
///
/// A slot that was freed keeps its last expert: a victim is asked for only when every slot is taken.
///
/// Complexity: O(1), `least` O(slots). State: 4 bytes a slot.
class SlotExperts {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    pool_ = pool;
    carve(experts_, pool.slots, ExpertId{pool.first_layer, 0});
  }

  FERRY_HD void put(std::uint32_t slot, ExpertId id) noexcept { experts_[slot] = id; }
  FERRY_HD ExpertId operator[](std::uint32_t slot) const noexcept { return experts_[slot]; }

  /// How many experts the pool's layers have together.
  FERRY_HD std::uint32_t size() const noexcept { return std::uint32_t{pool_.layers} * pool_.experts; }
  FERRY_HD std::uint32_t index(ExpertId id) const noexcept { return layer(id.layer) * pool_.experts + id.expert; }
  /// A layer of the model, counted from the pool's first.
  FERRY_HD std::uint32_t layer(std::uint16_t of_model) const noexcept {
    return std::uint32_t{of_model} - pool_.first_layer;
  }
  FERRY_HD std::uint32_t layers() const noexcept { return pool_.layers; }
  FERRY_HD std::uint32_t experts() const noexcept { return pool_.experts; }

  /// How many layers ahead of `now` the layer of `other` is, 0 to layers - 1: layers behind `now` come round in the
  /// next step. HOBBIT's (l_t - l_i + l_n) mod l_n.
  FERRY_HD std::uint32_t distance(ExpertId other, ExpertId now) const noexcept {
    return (std::uint32_t{other.layer} + pool_.layers - now.layer) % pool_.layers;
  }

  /// The slot whose expert has the least `worth(id)`, the lowest of those that tie, among those not barred; `no_slot`
  /// if all are.
  template <class Worth>
  FERRY_HD std::uint32_t least(Barred barred, const Worth& worth) const noexcept {
    std::uint32_t found = no_slot;
    decltype(worth(ExpertId{})) lowest{};
    for (std::uint32_t slot = 0; slot < pool_.slots; ++slot) {
      if (barred[slot]) continue;
      const auto w = worth(experts_[slot]);
      if (found != no_slot && !(w < lowest)) continue;
      found = slot;
      lowest = w;
    }
    return found;
  }

 private:
  Array<ExpertId> experts_;  ///< [slots]
  PoolShape pool_;
};

}  // namespace ferry
