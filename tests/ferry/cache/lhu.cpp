#include "ferry/cache/lhu.hpp"

#include <doctest/doctest.h>

#include "ferry/cache/lfu.hpp"
#include "support/cache_drive.hpp"
#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

struct NaiveLhu {
  explicit NaiveLhu(std::uint32_t slot_count) : slots(slot_count) {}
  void used(Variant what) noexcept { uses.add(what); }
  void reset() noexcept { uses.reset(); }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant, Barred barred) {
    return slots.least(barred, [&](ExpertId id) { return uses.count(id, Precision::full); });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  UseList uses;
  SlotList slots;
};

}  // namespace

TEST_CASE("HOBBIT's Fig. 11: LFU keeps expert 4, often used but mostly low, LHU keeps expert 6") {
  // As in the figure, expert 4 has more uses in all, expert 6 more at high precision: 2 high and 10 low against
  // 5 high and 1 low. LFU compares 12 with 6, LHU 2 with 5.
  Placed<Lfu> lfu(PoolShape{2, 0, 1, 8});
  Placed<Lhu> lhu(PoolShape{2, 0, 1, 8});
  auto use = [&](std::uint16_t expert, Precision precision, int times) {
    for (int i = 0; i < times; ++i) {
      lfu->used({{0, expert}, precision});
      lhu->used({{0, expert}, precision});
    }
  };
  auto fill = [](auto& cache) {
    cache->replace(0, full(0, 4), true);
    cache->replace(1, full(0, 6), true);
  };
  fill(lfu);
  fill(lhu);
  use(4, Precision::full, 2);
  use(4, Precision::int4, 10);
  use(6, Precision::full, 5);
  use(6, Precision::int4, 1);
  CHECK(order_of_eviction(*lfu, 2, full(0, 0)) == Order{1, 0});
  CHECK(order_of_eviction(*lhu, 2, full(0, 0)) == Order{0, 1});
}

TEST_CASE("LHU: what counts as high is a parameter") {
  for (const Precision high : {Precision::int8, Precision::full}) {
    Lhu policy;
    policy.high = high;
    Placed<Lhu> lhu(PoolShape{2, 0, 1, 4}, policy);
    lhu->replace(0, full(0, 0), true);
    lhu->replace(1, full(0, 1), true);
    lhu->used({{0, 0}, Precision::int8});
    lhu->used({{0, 0}, Precision::int8});
    lhu->used({{0, 0}, Precision::int4});
    lhu->used(full(0, 1));
    // From int8 on: 2 against 1. Full only: 0 against 1.
    CHECK(order_of_eviction(*lhu, 2, full(0, 2)) == (high == Precision::int8 ? Order{1, 0} : Order{0, 1}));
  }
}

TEST_CASE("LHU counts outlive eviction and end with the sequence") {
  Placed<Lhu> lhu(PoolShape{2, 0, 1, 4});
  lhu->used(full(0, 1));  // absent
  lhu->replace(0, full(0, 1), true);
  lhu->replace(1, full(0, 2), true);
  CHECK(order_of_eviction(*lhu, 2, full(0, 0)) == Order{1, 0});
  lhu->reset();
  CHECK(order_of_eviction(*lhu, 2, full(0, 0)) == Order{0, 1});
}

TEST_CASE("LHU against a naive count, victim by victim") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Drive d;
    Placed<Lhu> lhu(d.pool);
    NaiveLhu naive(d.pool.slots);
    const Driven result = drive(*lhu, naive, seed, d);
    CHECK(result.different == 0);
    CHECK(result.victims > 500);
    CHECK(result.slots == d.pool.slots);
  }
}
