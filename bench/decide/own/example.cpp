// What `bench/run own` measures if no file is named: an engine's own policy in a stack with parts of Ferry's.
#include "decide/own/own.hpp"

namespace {

using namespace ferry;

/// Evicts the expert that has been there longest, but passes over one that was used since, once.
class SecondChance {
 public:
  void reserve(Carver& carve, const PoolShape& pool) { carve(used_, pool.slots, std::uint8_t{0}); }
  FERRY_HD void touch(Variant /*what*/, std::uint32_t slot) noexcept {
    if (slot != no_slot) used_[slot] = 1;
  }
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    std::uint32_t second = no_slot;
    for (std::uint32_t i = 0; i < used_.size(); ++i) {
      const std::uint32_t slot = hand_ + i < used_.size() ? hand_ + i : hand_ + i - used_.size();
      if (barred[slot]) continue;
      if (used_[slot] == 0) return slot;
      if (second == no_slot) second = slot;
    }
    return second;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant /*what*/, bool /*demand*/) noexcept {
    for (; hand_ != slot; hand_ = hand_ + 1 < used_.size() ? hand_ + 1 : 0) used_[hand_] = 0;
    used_[slot] = 0;
  }

 private:
  Array<std::uint8_t> used_;  // [slots]
  std::uint32_t hand_ = 0;
};

using Own = Stack<NoPrediction, SecondChance, FixedPrecision, stacks::LoadEverything, TopK>;

}  // namespace

void ferry::bench::register_own() {
  register_layer<Own>("second-chance", false,
                      [](CoreConfig<Own>& c, std::uint64_t budget) { c.allotment = one_pool(c.model, budget); });
}
