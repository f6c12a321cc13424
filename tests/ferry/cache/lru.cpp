#include "ferry/cache/lru.hpp"

#include <doctest/doctest.h>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("the slot that was touched or filled longest ago goes first") {
  Placed<Lru> lru(PoolShape{3, 0, 1, 8});
  const std::uint8_t free[3] = {};
  for (std::uint32_t s = 0; s < 3; ++s) lru->replace(s, full(0, static_cast<std::uint16_t>(s)), true);
  CHECK(lru->victim(full(0, 5), {free, 1}) == 0);
  lru->touch(full(0, 0), 0);
  CHECK(lru->victim(full(0, 5), {free, 1}) == 1);
  lru->touch(full(0, 7), no_slot);  // absent: nothing changes
  CHECK(lru->victim(full(0, 5), {free, 1}) == 1);
  lru->replace(1, full(0, 5), false);  // a prefetch enters at the front
  CHECK(lru->victim(full(0, 6), {free, 1}) == 2);
}

TEST_CASE("barred slots are passed over") {
  Placed<Lru> lru(PoolShape{3, 0, 1, 8});
  const std::uint8_t flags[3] = {1, 2, 0};
  for (std::uint32_t s = 0; s < 3; ++s) lru->replace(s, full(0, static_cast<std::uint16_t>(s)), true);
  CHECK(lru->victim(full(0, 5), {flags, 1}) == 1);
  CHECK(lru->victim(full(0, 5), {flags, 3}) == 2);
  const std::uint8_t all[3] = {1, 1, 1};
  CHECK(lru->victim(full(0, 5), {all, 1}) == no_slot);
}
