#include "ferry/cache/static.hpp"

#include <doctest/doctest.h>

#include "support/cache_simulator.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("a static pool keeps what filled it and refuses the rest") {
  // Slots 0 and 1 go to experts 7 and 3. From then on only those two hit: 7, 3 and 7 again.
  Placed<StaticResidency> cache(PoolShape{2, 0, 1, 8});
  CHECK(hits(cache, 2, requests_for({7, 3, 1, 7, 1, 3, 2, 7})) == 3);
  const std::uint8_t none[2] = {};
  CHECK(cache->victim(full(0, 1), {none, 1}) == no_slot);
  CHECK(part::caches<StaticResidency>());
}
