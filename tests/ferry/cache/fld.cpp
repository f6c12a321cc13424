#include "ferry/cache/fld.hpp"

#include <doctest/doctest.h>

#include "support/cache_drive.hpp"
#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

/// Walks from the incoming layer to the next until it meets the expert's, and counts the steps.
struct NaiveFld {
  explicit NaiveFld(PoolShape shape) : pool(shape), slots(shape.slots) {}
  void used(Variant what) noexcept { here = what.id.layer; }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant incoming, Barred barred) {
    return slots.least(barred, [&](ExpertId id) {
      int walked = 0;
      for (int at = here < 0 ? incoming.id.layer : here; at != id.layer; ++walked) {
        at = at + 1 == pool.first_layer + pool.layers ? pool.first_layer : at + 1;
      }
      return -walked;
    });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  PoolShape pool;
  int here = -1;
  SlotList slots;
};

}  // namespace

TEST_CASE("FLD: the modular distance, also where the layers begin again") {
  // Slot s holds an expert of layer 2 + s of a pool over the layers 2 to 5. (l_t - l_i + 4) mod 4 by hand:
  //   incoming   slots 0 1 2 3    farthest first
  //   layer 2          0 1 2 3    3 2 1 0
  //   layer 3          3 0 1 2    0 3 2 1
  //   layer 4          2 3 0 1    1 0 3 2
  //   layer 5          1 2 3 0    2 1 0 3
  Placed<Fld> fld(PoolShape{4, 2, 4, 8});
  for (std::uint16_t s = 0; s < 4; ++s) fld->replace(s, full(static_cast<std::uint16_t>(2 + s), s), true);
  const std::uint8_t free[4] = {};
  const Order expected[4] = {{3, 2, 1, 0}, {0, 3, 2, 1}, {1, 0, 3, 2}, {2, 1, 0, 3}};
  for (std::uint16_t l = 0; l < 4; ++l) {
    const Variant incoming = full(static_cast<std::uint16_t>(2 + l), 7);
    CHECK(order_of_eviction(*fld, 4, incoming) == expected[l]);
    CHECK(fld->victim(incoming, {free, 1}) == expected[l][0]);
  }
}

TEST_CASE("FLD: a prefetch for a later layer is seen from the layer that runs") {
  Placed<Fld> fld(PoolShape{4, 0, 4, 8});
  for (std::uint16_t s = 0; s < 4; ++s) fld->replace(s, full(s, s), true);
  fld->used(full(0, 7));
  // Seen from layer 2, layer 1 would be farthest; seen from layer 0, which runs, it is next.
  CHECK(order_of_eviction(*fld, 4, full(2, 7)) == Order{3, 2, 1, 0});
}

TEST_CASE("FLD: equal distances go by the slot, uses do not matter") {
  Placed<Fld> fld(PoolShape{3, 0, 2, 8});
  fld->replace(0, full(0, 5), true);
  fld->replace(1, full(1, 6), true);
  fld->replace(2, full(1, 4), true);
  fld->touch(full(1, 6), 1);
  CHECK(order_of_eviction(*fld, 3, full(0, 1)) == Order{1, 2, 0});
  CHECK(order_of_eviction(*fld, 3, full(1, 1)) == Order{0, 1, 2});
}

TEST_CASE("FLD in a pool of one layer gives up the lowest slot") {
  Placed<Fld> fld(PoolShape{3, 6, 1, 8});
  for (std::uint16_t s = 0; s < 3; ++s) fld->replace(s, full(6, s), true);
  CHECK(order_of_eviction(*fld, 3, full(6, 7)) == Order{0, 1, 2});
}

TEST_CASE("FLD against a walk over the layers, victim by victim") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    Drive d;
    d.pool = {9, 2, 5, 8};
    Placed<Fld> fld(d.pool);
    NaiveFld naive(d.pool);
    const Driven result = drive(*fld, naive, seed, d);
    CHECK(result.different == 0);
    CHECK(result.victims > 500);
    CHECK(result.slots == d.pool.slots);
  }
}
