/// @file
/// Least frequently used, and among equals least recently used.
#pragma once
#include "ferry/cache/slot_experts.hpp"
#include "ferry/cache/use_record.hpp"

namespace ferry::bench {

/// ferry::Lfu by sequence, but for ties: those go to the expert that was used longest ago, not to the lower slot. Here
/// because BigMoeOnEdge's replay breaks ties so, and to see what ties are worth.
class LfuThenLru {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    uses_.reserve(carve, slots_.size());
  }

  void used(Variant what) noexcept {
    uses_.begin_step();  // every use is a moment of its own
    uses_.note(slots_.index(what.id), false);
  }
  void reset() noexcept { uses_.reset(); }

  static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    return slots_.least(barred, [this](ExpertId id) {
      const UseRecord::Use& use = uses_[slots_.index(id)];
      return Worth{use.all, use.last};
    });
  }
  void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept { slots_.put(slot, what.id); }

 private:
  struct Worth {
    std::uint64_t uses = 0, last = 0;
    bool operator<(const Worth& other) const noexcept {
      return uses != other.uses ? uses < other.uses : last < other.last;
    }
  };

  SlotExperts slots_;
  UseRecord uses_;
};

static_assert(CachePolicy<LfuThenLru>);

}  // namespace ferry::bench
