#include "ferry/cache/multidimensional.hpp"

#include <doctest/doctest.h>

#include "ferry/cache/fld.hpp"
#include "ferry/cache/lfu.hpp"
#include "ferry/cache/lhu.hpp"
#include "support/cache_drive.hpp"
#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

Multidimensional weighted(std::uint32_t lru, std::uint32_t lfu, std::uint32_t lhu, std::uint32_t fld) {
  Multidimensional policy;
  policy.lru = lru;
  policy.lfu = lfu;
  policy.lhu = lhu;
  policy.fld = fld;
  return policy;
}

/// The expert whose last use lies furthest back, by step.
struct NaiveLru {
  explicit NaiveLru(std::uint32_t slot_count) : slots(slot_count) {}
  void begin_step(const Step&) noexcept { uses.begin_step(); }
  void used(Variant what) noexcept { uses.add(what); }
  void reset() noexcept { uses.reset(); }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant, Barred barred) {
    return slots.least(barred, [&](ExpertId id) { return uses.last(id); });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  UseList uses;
  SlotList slots;
};

/// Eq. 3 as a fraction with the denominator 1000 * T * l_n, by counting through the list of uses.
struct NaiveEq3 {
  NaiveEq3(PoolShape shape, const Multidimensional& weights) : pool(shape), w(weights), slots(shape.slots) {}
  void begin_step(const Step&) noexcept { uses.begin_step(); }
  void used(Variant what) noexcept {
    uses.add(what);
    here = what.id.layer;
  }
  void reset() noexcept { uses.reset(); }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant incoming, Barred barred) {
    return slots.least(barred, [&](ExpertId id) {
      const int distance = (id.layer - (here < 0 ? incoming.id.layer : here) + pool.layers) % pool.layers;
      const int fld = static_cast<int>(w.fld) * (pool.layers - distance);
      if (uses.step() == 0) return fld;
      const std::uint32_t used =
          w.lru * uses.last(id) + w.lfu * uses.count(id, Precision::skip) + w.lhu * uses.count(id, Precision::full);
      return static_cast<int>(used) * pool.layers + fld * static_cast<int>(uses.step());
    });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  PoolShape pool;
  int here = -1;
  Multidimensional w;
  UseList uses;
  SlotList slots;
};

template <class Other>
void agree(const Multidimensional& weights, Other& other, const PoolShape& shape, std::uint64_t seed) {
  Drive d;
  d.pool = shape;
  Placed<Multidimensional> policy(d.pool, weights);
  const Driven result = drive(*policy, other, seed, d);
  CHECK(result.different == 0);
  CHECK(result.victims > 500);
  CHECK(result.slots == d.pool.slots);
}

constexpr PoolShape pool{9, 1, 4, 8};

}  // namespace

TEST_CASE("Eq. 3 by hand") {
  // Four layers, T = 10, weights 0.4, 0.3, 0.2, 0.1. The uses of slot s's expert are F steps in a row up to step R, the
  // last H of them at high precision.
  //   slot  layer   R  F  H    R/T, F/T and H/T weighted
  //   0     0      10  5  1    0.40 + 0.15 + 0.02 = 0.57
  //   1     1       9  2  2    0.36 + 0.06 + 0.04 = 0.46
  //   2     2       6  6  4    0.24 + 0.18 + 0.08 = 0.50
  //   3     3       8  4  4    0.32 + 0.12 + 0.08 = 0.52
  // FLD adds 0.1 (1 - d/4):
  //   incoming layer 1: d = 3 0 1 2, p = 0.595 0.560 0.575 0.570, order 1 3 2 0
  //   incoming layer 3: d = 1 2 3 0, p = 0.645 0.510 0.525 0.620, order 1 2 3 0
  struct Uses {
    int last, all, high;
  };
  const Uses uses[4] = {{10, 5, 1}, {9, 2, 2}, {6, 6, 4}, {8, 4, 4}};
  Placed<Multidimensional> policy(PoolShape{4, 0, 4, 8}, weighted(400, 300, 200, 100));
  const StepOf one(Phase::decode, 1);
  for (int t = 1; t <= 10; ++t) {
    policy->begin_step(one);
    for (std::uint16_t s = 0; s < 4; ++s) {
      const Uses& u = uses[s];
      if (t > u.last || t <= u.last - u.all) continue;
      policy->used({{s, s}, t > u.last - u.high ? Precision::full : Precision::int4});
    }
  }
  for (std::uint16_t s = 0; s < 4; ++s) policy->replace(s, full(s, s), true);
  auto miss = [&](std::uint16_t layer) {  // of an expert that is in no slot
    policy->used(full(layer, 7));
    return order_of_eviction(*policy, 4, full(layer, 7));
  };
  CHECK(miss(1) == Order{1, 3, 2, 0});
  CHECK(miss(3) == Order{1, 2, 3, 0});
  CHECK(order_of_eviction(*policy, 4, full(1, 7)) == Order{1, 2, 3, 0});  // a prefetch for layer 1: layer 3 still runs
  policy->reset();                                                        // FLD alone: farthest first
  CHECK(miss(1) == Order{0, 3, 2, 1});
  CHECK(miss(3) == Order{2, 1, 0, 3});
}

TEST_CASE("Eq. 3 with the weight of LRU alone is LRU by step") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    NaiveLru naive(pool.slots);
    agree(weighted(1000, 0, 0, 0), naive, pool, seed);
  }
}

TEST_CASE("Eq. 3 with the weight of LFU alone is LFU over sequences") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Placed<Lfu> lfu(pool);
    agree(weighted(0, 1000, 0, 0), *lfu, pool, seed);
  }
}

TEST_CASE("Eq. 3 with the weight of LHU alone is LHU") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Placed<Lhu> lhu(pool);
    agree(weighted(0, 0, 1000, 0), *lhu, pool, seed);
  }
}

TEST_CASE("Eq. 3 with the weight of FLD alone is FLD") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Placed<Fld> fld(pool);
    agree(weighted(0, 0, 0, 1000), *fld, pool, seed);
  }
}

TEST_CASE("Eq. 3 with mixed weights against a naive count, victim by victim") {
  std::uint64_t seed = 0;
  for (const Multidimensional& w :
       {weighted(250, 250, 250, 250), weighted(100, 200, 300, 400), weighted(500, 1, 2, 497)}) {
    NaiveEq3 naive(pool, w);
    agree(w, naive, pool, ++seed);
  }
}

TEST_CASE("Eq. 3: equal priorities go by the slot") {
  Placed<Multidimensional> policy(PoolShape{3, 0, 1, 8});
  for (std::uint16_t s = 0; s < 3; ++s) policy->replace(s, full(0, static_cast<std::uint16_t>(6 - s)), true);
  policy->begin_step(StepOf(Phase::decode, 1));
  for (std::uint16_t e = 4; e <= 6; ++e) policy->used(full(0, e));
  CHECK(order_of_eviction(*policy, 3, full(0, 0)) == Order{0, 1, 2});
}

TEST_CASE("Eq. 3: a low-precision use raises R and F but not H") {
  // Expert 0 is used in step 1, expert 1 in steps 1 and 2. Expert 1 sits in slot 0, where a tie goes.
  auto evicts_first = [](const Multidimensional& w, Precision second) {
    Placed<Multidimensional> policy(PoolShape{2, 0, 1, 8}, w);
    policy->replace(0, full(0, 1), true);
    policy->replace(1, full(0, 0), true);
    policy->begin_step(StepOf(Phase::decode, 1));
    policy->used(full(0, 0));
    policy->used(full(0, 1));
    policy->begin_step(StepOf(Phase::decode, 1));
    policy->used({{0, 1}, second});
    const std::uint8_t free[2] = {};
    return policy->victim(full(0, 2), {free, 1});
  };
  CHECK(evicts_first(weighted(1000, 0, 0, 0), Precision::int4) == 1);  // R: 2 against 1
  CHECK(evicts_first(weighted(0, 1000, 0, 0), Precision::int4) == 1);  // F: 2 against 1
  CHECK(evicts_first(weighted(0, 0, 1000, 0), Precision::int4) == 0);  // H: 1 and 1
  CHECK(evicts_first(weighted(0, 0, 1000, 0), Precision::full) == 1);  // H: 2 against 1
}

TEST_CASE("Eq. 3: R, F and H outlive eviction and count on while the expert is absent") {
  for (const Multidimensional& w : {weighted(1000, 0, 0, 0), weighted(0, 1000, 0, 0), weighted(0, 0, 1000, 0)}) {
    Placed<Multidimensional> policy(PoolShape{2, 0, 1, 8}, w);
    const StepOf one(Phase::decode, 1);
    policy->replace(0, full(0, 0), true);
    policy->replace(1, full(0, 1), true);
    policy->begin_step(one);
    policy->used(full(0, 1));
    policy->replace(1, full(0, 2), true);  // expert 1 leaves
    policy->begin_step(one);
    policy->used(full(0, 0));
    policy->begin_step(one);
    policy->used(full(0, 1));  // absent: R = 3, F = H = 2 against R = 2, F = H = 1
    policy->replace(0, full(0, 1), true);
    policy->replace(1, full(0, 0), true);
    CHECK(order_of_eviction(*policy, 2, full(0, 3)) == Order{1, 0});
  }
}

TEST_CASE("Eq. 3: two pools that see the same uses rank alike, whatever they hold") {
  // The caches for high and low precision share one record of priorities (Fig. 12), so the same experts have the same order.
  Placed<Multidimensional> high(pool), low(pool);
  Random random(9);
  for (int step = 0; step < 50; ++step) {
    high->begin_step(StepOf(Phase::decode, 1));
    low->begin_step(StepOf(Phase::decode, 1));
    const auto layer = static_cast<std::uint16_t>(random.between(1, 4));
    const auto expert = static_cast<std::uint16_t>(random.below(8));
    const bool is_high = random.chance(50);
    const Variant what{{layer, expert}, is_high ? Precision::full : Precision::int4};
    high->used(what);
    low->used(what);
    (is_high ? high : low)->replace(random.below(pool.slots), what, true);
  }
  for (std::uint16_t s = 0; s < pool.slots; ++s) {
    const ExpertId id{static_cast<std::uint16_t>(1 + s % 4), static_cast<std::uint16_t>(s % 8)};
    high->replace(s, {id, Precision::full}, true);
    low->replace(s, {id, Precision::int4}, true);
  }
  CHECK(order_of_eviction(*high, pool.slots, full(2, 7)) == order_of_eviction(*low, pool.slots, full(2, 7)));
}

TEST_CASE("Eq. 3 of many layers and a long sequence does not run over 32 bits") {
  // T = 110000 and l_n = 65535. The expert of layer 0 is used in every step: p = 0.75 + 0.25 = 1. That of layer 1 never
  // is, and lies 1 layer ahead: p = 0.25 (1 - 1/65535) = 0.249996. That of layer 65534, 65534 ahead, is used in the
  // last step only: p = 0.25 + 2 * 0.25 / 110000 + 0.25 / 65535 = 0.250008. So the order is 1, 2, 0.
  Placed<Multidimensional> policy(PoolShape{3, 0, 65535, 1}, weighted(250, 250, 250, 250));
  const StepOf one(Phase::decode, 1);
  for (int t = 0; t < 110000; ++t) {
    policy->begin_step(one);
    policy->used(full(0, 0));
  }
  policy->used(full(65534, 0));
  policy->replace(0, full(0, 0), true);
  policy->replace(1, full(1, 0), true);
  policy->replace(2, full(65534, 0), true);
  CHECK(order_of_eviction(*policy, 3, full(0, 0)) == Order{1, 2, 0});
}

TEST_CASE("weights that do not sum to a thousand are refused") {
  CHECK_THROWS_WITH_AS((Placed<Multidimensional>(pool, weighted(300, 300, 300, 300))),
                       "Multidimensional: the weights 300 (lru), 300 (lfu), 300 (lhu) and 300 (fld) sum to 1200, "
                       "expected 1000 (thousandths)",
                       ConfigError);
  CHECK_THROWS_AS((Placed<Multidimensional>(pool, weighted(250, 250, 250, 249))), ConfigError);
  // 2^32 + 1000: the sum is not taken modulo 2^32.
  CHECK_THROWS_AS((Placed<Multidimensional>(pool, weighted(4294967295U, 1, 500, 500))), ConfigError);
}
