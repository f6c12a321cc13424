#include "ferry/cache/lfu.hpp"

#include <doctest/doctest.h>

#include "support/cache_drive.hpp"
#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

/// Counts by going through all uses again, each time.
struct NaiveLfu {
  NaiveLfu(std::uint32_t slot_count, bool resets) : slots(slot_count), forgets(resets) {}
  void used(Variant what) noexcept { uses.add(what); }
  void reset() noexcept {
    if (forgets) uses.reset();
  }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant, Barred barred) {
    return slots.least(barred, [&](ExpertId id) { return uses.count(id, Precision::skip); });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  UseList uses;
  SlotList slots;
  bool forgets;
};

Lfu over(CountOver scope) {
  Lfu policy;
  policy.over = scope;
  return policy;
}

}  // namespace

TEST_CASE("LFU gives up the expert with the fewest uses, the lowest slot of equals") {
  Placed<Lfu> lfu(PoolShape{4, 0, 1, 8});
  for (std::uint16_t s = 0; s < 4; ++s) lfu->replace(s, full(0, s), true);
  const std::uint16_t uses[] = {0, 0, 0, 1, 2, 2, 3};  // 3, 1, 2 and 1 of the experts 0 to 3
  for (const std::uint16_t e : uses) lfu->used(full(0, e));
  CHECK(order_of_eviction(*lfu, 4, full(0, 7)) == Order{1, 3, 2, 0});
  lfu->touch(full(0, 1), 1);  // a touch is no use: only `used` counts
  CHECK(order_of_eviction(*lfu, 4, full(0, 7)) == Order{1, 3, 2, 0});
}

TEST_CASE("LFU counts outlive eviction and go on while the expert is absent") {
  Placed<Lfu> lfu(PoolShape{2, 0, 1, 8});
  lfu->replace(0, full(0, 0), true);
  lfu->replace(1, full(0, 1), true);
  lfu->used(full(0, 0));
  lfu->used(full(0, 0));
  lfu->used(full(0, 1));
  lfu->replace(0, full(0, 2), true);  // expert 0 leaves with two uses
  lfu->used(full(0, 2));
  lfu->used(full(0, 2));
  lfu->used(full(0, 1));
  lfu->used(full(0, 0));              // the third, served by the host
  lfu->replace(1, full(0, 0), true);  // back: 3 uses against the 2 of expert 2
  CHECK(order_of_eviction(*lfu, 2, full(0, 1)) == Order{0, 1});
}

TEST_CASE("LFU counts low-precision uses like any other, and layers apart") {
  Placed<Lfu> lfu(PoolShape{2, 3, 2, 4});
  lfu->replace(0, full(3, 1), true);
  lfu->replace(1, full(4, 1), true);
  lfu->used({{3, 1}, Precision::int4});
  lfu->used({{3, 1}, Precision::int4});
  lfu->used(full(4, 1));
  CHECK(order_of_eviction(*lfu, 2, full(3, 0)) == Order{1, 0});
}

TEST_CASE("LFU over sequences begins anew at a reset, LFU over the model never") {
  for (const CountOver scope : {CountOver::sequence, CountOver::model}) {
    Placed<Lfu> lfu(PoolShape{2, 0, 1, 8}, over(scope));
    lfu->replace(0, full(0, 0), true);
    lfu->replace(1, full(0, 1), true);
    for (int i = 0; i < 3; ++i) lfu->used(full(0, 0));
    lfu->reset();
    lfu->used(full(0, 1));
    CHECK(order_of_eviction(*lfu, 2, full(0, 2)) == (scope == CountOver::sequence ? Order{0, 1} : Order{1, 0}));
  }
}

TEST_CASE("LFU against a naive count, victim by victim") {
  for (const CountOver scope : {CountOver::sequence, CountOver::model}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const Drive d;
      Placed<Lfu> lfu(d.pool, over(scope));
      NaiveLfu naive(d.pool.slots, scope == CountOver::sequence);
      const Driven result = drive(*lfu, naive, seed, d);
      CHECK(result.different == 0);
      CHECK(result.victims > 500);
      CHECK(result.slots == d.pool.slots);
    }
  }
}
