/// @file
/// Least frequently used, and among equals least recently used.
#pragma once
#include "ferry/cache/slot_experts.hpp"

namespace ferry::bench {

/// ferry::Lfu by sequence, but for ties: those go to the expert that was used longest ago, not to the lower slot. Here
/// because BigMoeOnEdge's replay breaks ties so, and to see what ties are worth.
class LfuThenLru {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    carve(worth_, slots_.size());
  }

  void used(Variant what) noexcept {
    Worth& worth = worth_[slots_.index(what.id)];
    ++worth.uses;
    worth.last = ++now_;
    slots_.grew(what.id);
  }
  void reset() noexcept {
    for (Worth& w : worth_) w = {};
    slots_.changed();
  }

  static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  std::uint32_t victim(Variant /*incoming*/, Barred barred) noexcept {
    return slots_.least(barred, [this](ExpertId id) { return worth_[slots_.index(id)]; });
  }
  void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, worth_[slots_.index(what.id)]);
  }

 private:
  struct Worth {
    std::uint64_t uses = 0, last = 0;
    bool operator<(const Worth& other) const noexcept {
      return uses != other.uses ? uses < other.uses : last < other.last;
    }
  };

  SlotExperts<Worth> slots_;
  Array<Worth> worth_;     ///< [layers, experts]
  std::uint64_t now_ = 0;  ///< every use is a moment of its own
};

static_assert(CachePolicy<LfuThenLru>);

}  // namespace ferry::bench
