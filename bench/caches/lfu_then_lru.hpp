/// @file
/// Least frequently used, and among equals least recently used.
#pragma once
#include "ferry/detail/slot_experts.hpp"

namespace ferry::bench {

/// ferry::Lfu by sequence, except that ties go to the expert that was used longest ago, not to the lower slot. It is here
/// because BigMoeOnEdge's replay breaks ties like this, and to see what ties are worth.
class LfuThenLru {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    slots_.reserve(carve, pool);
    carve(worth_, slots_.size());
  }

  void used(Variant what) noexcept {
    std::int64_t& worth = worth_[slots_.index(what.id)];
    worth = (worth / one_use + 1) * one_use + ++now_;
    slots_.grew(what.id);
  }
  void reset() noexcept {
    for (std::int64_t& w : worth_) w = 0;
    slots_.changed();
  }

  static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}
  std::uint32_t victim(Variant /*incoming*/, Barred barred) noexcept {
    return slots_.least(barred, [this](std::size_t at) { return worth_[at]; });
  }
  void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept {
    slots_.put(slot, what.id, worth_[slots_.index(what.id)]);
  }

 private:
  static constexpr std::int64_t one_use = std::int64_t{1} << 36;

  detail::SlotExperts slots_;
  Array<std::int64_t> worth_;  ///< [layers, experts] uses of the sequence, and below them the moment of the last
  std::int64_t now_ = 0;       ///< every use is a moment of its own, below 2^36
};

static_assert(CachePolicy<LfuThenLru>);

}  // namespace ferry::bench
