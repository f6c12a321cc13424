// An engine's own policies and link, tried by the contracts that the library's keep. It needs no library but doctest:
//   g++ -std=c++20 -I include -I tests tests/contracts/own_policy/main.cpp -o own_policy && ./own_policy
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "contracts/cache_policy.hpp"
#include "contracts/link.hpp"
#include "contracts/predictor.hpp"
#include "contracts/quant_selector.hpp"
#include "contracts/router.hpp"
#include "contracts/scheduler.hpp"
#include "ferry/predictor/cross_layer_gate.hpp"
#include "ferry/stacks.hpp"

namespace {

using namespace ferry;

/// CLOCK: a hand goes round and takes the first slot that was not used since the hand was there last.
class SecondChance {
 public:
  void reserve(Carver& carve, const PoolShape& pool) { carve(used_, pool.slots, std::uint8_t{0}); }
  FERRY_HD void touch(Variant /*what*/, std::uint32_t slot) noexcept {
    if (slot != no_slot) used_[slot] = 1;
  }
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    std::uint32_t second = no_slot;
    for (std::uint32_t i = 0; i < used_.size(); ++i) {
      const std::uint32_t slot = (hand_ + i) % used_.size();
      if (barred[slot]) continue;
      if (used_[slot] == 0) return slot;
      if (second == no_slot) second = slot;
    }
    return second;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant /*what*/, bool /*demand*/) noexcept {
    for (; hand_ != slot; hand_ = (hand_ + 1) % used_.size()) used_[hand_] = 0;
    used_[slot] = 0;
  }

 private:
  Array<std::uint8_t> used_;  // [slots]
  std::uint32_t hand_ = 0;
};
static_assert(CachePolicy<SecondChance>);

/// Names only the two surest of the experts that Fate predicts.
struct SurestTwo : CrossLayerGate {
  FERRY_HD void predict(Phase phase, const Scores& scores, Out<Request>& out) noexcept {
    CrossLayerGate::predict(phase, scores, out);
    out.size = out.size < 2 ? out.size : 2;
  }
};
static_assert(Predictor<SurestTwo>);

/// Prefetches in INT4, and copies on demand at full precision.
struct SmallAhead {
  FERRY_HD void select(Phase /*phase*/, bool demand, View<Request> requests) const noexcept {
    for (Request& r : requests) r.want.precision = demand ? Precision::full : Precision::int4;
  }
  FERRY_HD std::uint8_t precisions() const noexcept { return 1U << 2U | 1U << 4U; }  // INT4, full
};
static_assert(QuantSelector<SmallAhead>);

/// The gate's choice in reverse order.
struct WorstFirst : TopK {
  FERRY_HD void route(Phase phase, const Scores& scores, View<const State> present, Out<Route>& out) const noexcept {
    const std::uint32_t first = out.size;
    TopK::route(phase, scores, present, out);
    for (std::uint32_t i = first, j = out.size; i + 1 < j; ++i) {
      const Route other = out.data[--j];
      out.data[j] = out.data[i];
      out.data[i] = other;
    }
  }
};
static_assert(ExpertRouter<WorstFirst>);

/// Copies at once, on the calling thread. That is true of prefetches, too, so nothing is ever taken back.
class Blocking {
 public:
  void submit(const Copy& copy) noexcept {
    std::memset(slots[copy.slot].data(), static_cast<int>(copy.what.id.expert), slots[copy.slot].size());
    if (copy.demand) {
      seen_.demand_landed = copy.ticket;
    } else {
      seen_.prefetch_begun = seen_.prefetch_landed = copy.ticket;
    }
  }
  void drop(Ticket /*ticket*/) noexcept {}
  void fence(Fence /*fence*/) noexcept {}  // whoever reads a slot has done so before the next call
  [[nodiscard]] Seen seen() const noexcept { return seen_; }
  void wait(Ticket ticket) const {
    const bool demand = (static_cast<std::uint64_t>(ticket) & 1U) == 0;
    if (ticket > (demand ? seen_.demand_landed : seen_.prefetch_landed)) throw LinkError("nobody asked for this copy");
  }

  std::array<std::array<unsigned char, test::expert_bytes>, 10> slots{};

 private:
  Seen seen_;
};
static_assert(Link<Blocking>);

struct BlockingRig {
  std::unique_ptr<Blocking> link = std::make_unique<Blocking>();
  [[nodiscard]] std::pair<std::byte, std::byte> ends(std::uint32_t slot) const {
    return {static_cast<std::byte>(link->slots[slot].front()), static_cast<std::byte>(link->slots[slot].back())};
  }
  static void pass() {}
};

using ManyRowsFirst = Schedule<NoLimit, BatchSizeOrder, DeviceOnly>;

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(ferry::test::cache_policy_contract, SecondChance);
TEST_CASE_TEMPLATE_INVOKE(ferry::test::predictor_contract, SurestTwo);
TEST_CASE_TEMPLATE_INVOKE(ferry::test::quant_selector_contract, SmallAhead);
TEST_CASE_TEMPLATE_INVOKE(ferry::test::router_contract, WorstFirst);
TEST_CASE_TEMPLATE_INVOKE(ferry::test::scheduler_contract, ManyRowsFirst);
TEST_CASE("Link") {
  BlockingRig rig;
  ferry::test::link_contract_of(rig);
}
