// What each named stack is composed of, and how it is set up.
#include "ferry/stacks.hpp"

#include <doctest/doctest.h>

#include "ferry/core.hpp"
#include "ferry/stack_traits.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

template <class S, class P, class C, class Q, class R>
constexpr bool is = std::is_same_v<typename S::predictor, P>&& std::is_same_v<typename S::cache, C>&&
    std::is_same_v<typename S::precision, Q>&& std::is_same_v<typename S::router, R>;
template <class S, class L, class O, class P>
constexpr bool schedules = std::is_same_v<typename S::scheduler, Schedule<L, O, P>>;

using namespace stacks;
static_assert(is<OnDemand, NoPrediction, LoadOnDemand, FixedPrecision, TopK>);
static_assert(is<LayerStream, EveryExpert, FifoCache, FixedPrecision, TopK>);
static_assert(is<LruCache, NoPrediction, Lru, FixedPrecision, TopK>);
static_assert(is<MixtralOffloading, CrossLayerGate, Lru, FixedPrecision, TopK>);
static_assert(is<MoeInfinity, ActivationMatrix, Lfu, FixedPrecision, TopK>);
static_assert(is<ActivationPathStack, ActivationPath, Arc, FixedPrecision, TopK>);
static_assert(is<StaticHost, NoPrediction, StaticResidency, FixedPrecision, TopK>);
static_assert(schedules<StaticHost, NoLimit, ArrivalOrder, HostInDecode> && traits_of<StaticHost>().preloads);
static_assert(is<HybriMoe, CrossLayerGate, ScoreAverage, FixedPrecision, TopK>);
static_assert(schedules<HybriMoe, NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::best_split>> &&
              traits_of<HybriMoe>().preloads);
static_assert(is<stacks::Ferry, NoPrediction, ExpectedSavings, FixedPrecision, TopK>);
static_assert(schedules<stacks::Ferry, NoLimit, BatchSizeOrder, EarliestFinish> && traits_of<stacks::Ferry>().preloads);
static_assert(is<FerryLossy, NoPrediction, ExpectedSavings, FixedPrecision, ExpertSkipping>);
static_assert(schedules<FerryLossy, NoLimit, BatchSizeOrder, EarliestFinish> && traits_of<FerryLossy>().preloads);
static_assert(is<FerryDevice, NoPrediction, ExpectedSavings, FixedPrecision, TopK>);
static_assert(is<FatePrefetch, CrossLayerGate, FifoCache, FixedPrecision, TopK>);
static_assert(is<FateCache, CrossLayerGate, Arc, FixedPrecision, TopK>);
static_assert(is<Fate, CrossLayerGate, Arc, PopularityHybrid, TopK>);
static_assert(schedules<Fate, TransferBudget, PopularityOrder, DeviceOnly> && !traits_of<Fate>().preloads);
static_assert(is<HobbitDynamic, NoPrediction, Lru, ImportanceThresholds, TopK>);
static_assert(is<HobbitPrefetch, StackedGates, Lru, ImportanceThresholds, TopK>);
static_assert(is<Hobbit, StackedGates, Multidimensional, ImportanceThresholds, TopK>);
static_assert(schedules<Hobbit, FirstMiss, ArrivalOrder, DeviceOnly>);
static_assert(is<HobbitCooperative, StackedGates, Multidimensional, ImportanceThresholds, TopK>);
static_assert(schedules<HobbitCooperative, FirstMiss, ArrivalOrder, HostInDecode>);
static_assert(is<ImportanceEviction, NoPrediction, ScoreWindow, FixedPrecision, TopK>);
static_assert(is<ImportanceRouter, NoPrediction, ScoreWindow, FixedPrecision, ExpertCacheRouter>);
static_assert(is<ImportancePrefetch, PartialHidden, ScoreWindow, FixedPrecision, ExpertCacheRouter>);
static_assert(is<ImportanceDriven, PartialHidden, ScoreWindow, FixedPrecision, ExpertCacheRouter>);
static_assert(schedules<ImportanceDriven, NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::two_pointer>> &&
              traits_of<ImportanceDriven>().preloads);
static_assert(is<ImportanceBalanced, PartialHidden, ScoreWindow, FixedPrecision, ExpertCacheRouter>);
static_assert(schedules<ImportanceBalanced, NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::best_split>> &&
              traits_of<ImportanceBalanced>().preloads);

/// 6 layers, 8 experts, top-2: 256 bytes, INT8 128, INT4 64, INT2 32.
ModelShape shape() {
  ModelShape m = model(6, 8, 2, 4, 256, 64);
  m.expert_bytes[0][static_cast<unsigned>(Precision::int8)] = 128;
  m.expert_bytes[0][static_cast<unsigned>(Precision::int2)] = 32;
  return m;
}

template <class S>
CoreConfig<S> set_up(std::uint64_t budget, CoreConfig<S> c = {}) {
  c.model = shape();
  S::set_up(c, budget);
  c.validate();
  return c;
}

std::vector<std::uint32_t> slots(const Allotment& a) {
  std::vector<std::uint32_t> n;
  for (const Pool& p : a.pools) n.push_back(p.slots);
  return n;
}
using Slots = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("the baselines are laid out as they are used") {
  CHECK(set_up<OnDemand>(20 * 256).allotment.stream_slots == 8);
  CoreConfig<OnDemand> int4;
  int4.precision.precision = Precision::int4;
  CHECK(set_up(4 * 64, int4).allotment.stream_slot_bytes == 64);
  CHECK(slots(set_up<LruCache>(14 * 256).allotment) == Slots{2, 2, 2, 2, 2, 2});
  CHECK(slots(set_up<LayerStream>(14 * 256).allotment) == Slots{12});
  CHECK(set_up<MixtralOffloading>(14 * 256).predictor.plain_top_k);
  CHECK(set_up<MoeInfinity>(14 * 256).cache.over == CountOver::model);
  CHECK(set_up<HybriMoe>(14 * 256).cache.top_p == 4);
  CHECK(set_up<HybriMoe>(14 * 256).predictor.plain_top_k);
  CHECK(slots(set_up<LlamaCache>(14 * 256).allotment) == Slots{12});
  CHECK(set_up<LlamaCache>(14 * 256).transient_prefill_rows == 32);
  for (const std::uint32_t rows : {8U, 64U}) {
    CoreConfig<LlamaCache> own;
    own.transient_prefill_rows = rows;
    CHECK(set_up(14 * 256, own).transient_prefill_rows == rows);
  }
}

TEST_CASE("ours is one pool over all layers, with a host and without") {
  CHECK(slots(set_up<stacks::Ferry>(14 * 256).allotment) == Slots{12});
  CHECK(slots(set_up<FerryLossy>((12 + 2) * 64).allotment) == Slots{12});
  CHECK(stacks::held_precisions(set_up<FerryLossy>(14 * 64)).bits == part::bit(Precision::int4));
  CHECK(slots(set_up<FerryDevice>((2 + 6) * 256).allotment) == Slots{6});
}

TEST_CASE("twins in INT4 have four times the slots, and EAP holds what Fate's cache holds") {
  CHECK(slots(set_up<LruInt4>((12 + 2) * 64).allotment) == Slots{2, 2, 2, 2, 2, 2});
  CHECK(slots(set_up<StaticHostInt4>((12 + 2) * 64).allotment) == Slots{2, 2, 2, 2, 2, 2});
  for (const PrecisionSet held :
       {stacks::held_precisions(set_up<LruInt4>(14 * 64)), stacks::held_precisions(set_up<StaticHostInt4>(14 * 64)),
        stacks::held_precisions(set_up<ActivationPathStack>(shape().all_bytes() - 1))}) {
    CHECK(held.bits == part::bit(Precision::int4));
  }
  CoreConfig<Fate> fate;
  fate.precision.low_share_percent = 0;
  for (const std::uint64_t experts : {20U, 36U, 44U}) {
    // EAP makes no room for candidates of two layers, but for the top-k of two: in this model that is as much.
    CHECK(slots(set_up<ActivationPathStack>((2 + experts) * 64).allotment) ==
          slots(set_up((2 + experts) * 64, fate).allotment));
    CHECK(slots(set_up<ActivationPathFull>((2 + experts) * 256).allotment) ==
          slots(set_up<FateCache>((2 + experts) * 256).allotment));
  }
  const CoreConfig<ActivationPathStack> sufficient = set_up<ActivationPathStack>(shape().all_bytes());
  CHECK(stacks::held_precisions(sufficient).bits == part::bit(Precision::full));
}

TEST_CASE("Fate: whole shallow layers first, in slots for INT4 that INT2 shares") {
  // (budget - 2) / 64 slots of INT4; a layer is whole with one slot an expert, whatever lies there
  CoreConfig<Fate> c = set_up<Fate>((2 + 44) * 64);
  CHECK(slots(c.allotment) == Slots{8, 8, 8, 8, 6, 6});
  CHECK(c.allotment.pools[0].precisions == (part::bit(Precision::int4) | part::bit(Precision::int2)));
  CHECK(c.allotment.pools[0].slot_bytes == 64);
  CHECK(c.precision.high == Precision::int4);
  // Every INT4 expert has a slot, and two more for second variants.
  CHECK(slots(set_up<Fate>((2 + 50) * 64).allotment) == Slots{9, 9, 8, 8, 8, 8});
  // If the budget ends within the shallow layers, two layers' candidates keep room: 2 of 8 above the 75th percentile.
  CHECK(slots(set_up<Fate>((2 + 20) * 64).allotment) == Slots{8, 8, 0, 0, 2, 2});
  // Memory is sufficient, so experts have the model's own precision.
  c = set_up<Fate>(shape().all_bytes());
  CHECK(c.precision.high == Precision::full);
  CHECK(c.precision.low_share_percent == 0);
  CHECK(slots(set_up<FateCache>((2 + 36) * 256).allotment) == Slots{8, 8, 8, 8, 2, 2});
  CHECK(slots(set_up<FatePrefetch>((2 + 36) * 256).allotment) == Slots{4});
  CHECK(slots(set_up<FatePrefetch>(shape().all_bytes()).allotment) == Slots{4});  // no cache, however large the budget
}

TEST_CASE("HOBBIT: two pools by precision, for both of the paper's pairs") {
  CoreConfig<Hobbit> c = set_up<Hobbit>(20 * 256);
  REQUIRE(c.allotment.pools.size() == 2);
  CHECK(c.allotment.pools[0].precisions == part::bit(Precision::full));
  CHECK(c.allotment.pools[1].precisions == part::bit(Precision::int4));
  CHECK(c.allotment.pools[0].layers == 6);
  CHECK(c.cache.high == Precision::full);
  CoreConfig<Hobbit> other;
  other.precision.high = Precision::int8;
  other.precision.low = Precision::int2;
  other = set_up(20 * 128, other);
  CHECK(other.allotment.pools[0].precisions == part::bit(Precision::int8));
  CHECK(other.allotment.pools[1].precisions == part::bit(Precision::int2));
  CHECK(other.cache.high == Precision::int8);
  // Everything fits at high precision: nothing is shrunk or skipped.
  c = set_up<Hobbit>(shape().all_bytes());
  CHECK(c.precision.t1 == 1.0F);
  CHECK(slots(c.allotment) == Slots{48});
  CHECK(c.allotment.stream_slots == 0);
  // But what a user sets is kept.
  c.precision.t1 = 0.4F;
  c.precision.t2 = 0.9F;
  Hobbit::Layout layout;
  layout.keeps_thresholds = true;
  Hobbit::set_up(c, shape().all_bytes(), layout);
  CHECK(c.precision.t1 == 0.4F);
  CHECK(c.allotment.pools.size() == 2);
  CoreConfig<Hobbit> neutral;
  neutral.precision.t1 = neutral.precision.t2 = 1.0F;
  CHECK(set_up(20 * 256, neutral).allotment.pools.size() == 1);
  // With equal thresholds nothing has low precision, so a low pool could never be used.
  CoreConfig<Hobbit> skips;
  skips.precision.t1 = skips.precision.t2 = 0.8F;
  skips = set_up(20 * 256, skips);
  CHECK(slots(skips.allotment) == Slots{18});
  CHECK(skips.allotment.pools[0].precisions == part::bit(Precision::full));
}

TEST_CASE("HOBBIT: the low pool's share is a parameter of the layout") {
  for (const std::uint32_t percent : {0U, 4U, 25U}) {
    CoreConfig<Hobbit> c;
    c.model = shape();
    Hobbit::set_up(c, 40 * 256, {percent});
    c.validate();
    REQUIRE(c.allotment.pools.size() == 2);
    CHECK(c.allotment.pools[1].slots >= 38 * 256 * percent / 100 / 64);
    CHECK(c.allotment.pools[1].slots <= 38 * 256 * percent / 100 / 64 + 4);  // and what the high one cannot use
    CHECK(c.allotment.bytes() <= 40 * 256);
  }
}

TEST_CASE("importance-driven: as many experts as fit, evenly by layer") {
  CHECK(slots(set_up<ImportanceDriven>(15 * 256).allotment) == Slots{3, 2, 2, 2, 2, 2});
}

TEST_CASE("a store that lacks a precision is refused, and so is an allotment") {
  CoreConfig<Hobbit> c;
  c.model = model(6, 8, 2, 4, 256);  // full only
  c.allotment = one_pool(c.model, 20 * 256);
  CHECK_THROWS_WITH_AS(
      c.validate(), doctest::Contains("the precision selector asks for INT4 but layer 0 is not stored"), ConfigError);
  c.model = shape();
  c.allotment = one_pool(c.model, 20 * 256);
  CHECK_THROWS_WITH_AS(c.validate(), doctest::Contains("asks for INT4 but no pool holds it"), ConfigError);
}
