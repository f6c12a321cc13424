#include "ferry/cache/load_on_demand.hpp"

#include <doctest/doctest.h>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("never gives a slot") {
  LoadOnDemand cache;
  const std::uint8_t free[2] = {};
  cache.replace(0, full(0, 1), true);
  cache.touch(full(0, 1), 0);
  CHECK(cache.victim(full(0, 2), {free, 1}) == no_slot);
  CHECK_FALSE(LoadOnDemand::caches);
}
