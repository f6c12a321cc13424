/// @file
/// A victim drawn at random.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts any slot that is not barred, each equally likely: the floor that a policy with an idea has to beat.
///
/// Source: the baseline of HOBBIT, section 5.5.3; draws by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
/// A draw is a function of the seed, of the pool's first layer and of how often `replace` was called: `victim` gives
/// the same answer until the next `replace`, and pools of different layers do not evict in step.
///
/// Complexity: touch and replace O(1), victim O(slots). State: 24 bytes.
/// Ambiguities resolved. "Equally likely" holds to within slots / 2^32: a draw is scaled, not rejected.
class RandomVictim {
 public:
  std::uint64_t seed = 1;  ///< of the draws

  void reserve(Carver& /*carve*/, const PoolShape& pool) {
    slots_ = pool.slots;
    state_ = seed + (std::uint64_t{pool.first_layer} << 32U);
  }

  FERRY_HD static void touch(Variant /*what*/, std::uint32_t /*slot*/) noexcept {}

  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    std::uint64_t candidates = 0;
    for (std::uint32_t slot = 0; slot < slots_; ++slot) candidates += barred[slot] ? 0U : 1U;
    std::uint64_t passed_over = (draw() >> 32U) * candidates >> 32U;
    for (std::uint32_t slot = 0; slot < slots_; ++slot) {
      if (!barred[slot] && passed_over-- == 0) return slot;
    }
    return no_slot;
  }

  FERRY_HD void replace(std::uint32_t /*slot*/, Variant /*what*/, bool /*demand*/) noexcept { state_ += increment; }

 private:
  static constexpr std::uint64_t increment = 0x9e3779b97f4a7c15U;

  FERRY_HD std::uint64_t draw() const noexcept {
    std::uint64_t z = state_ + increment;
    z = (z ^ z >> 30U) * 0xbf58476d1ce4e5b9U;
    z = (z ^ z >> 27U) * 0x94d049bb133111ebU;
    return z ^ z >> 31U;
  }

  std::uint64_t state_ = 0;
  std::uint32_t slots_ = 0;
};

static_assert(CachePolicy<RandomVictim>);

}  // namespace ferry::inline FERRY_ABI
