#include "ferry/cache/slot_experts.hpp"

#include <doctest/doctest.h>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// SlotExperts is no policy; it is placed like one.
constexpr PoolShape pool{4, 2, 3, 5};  // layers 2, 3, 4

}  // namespace

TEST_CASE("a pool's experts are numbered layer by layer from the pool's first") {
  Placed<SlotExperts> slots(pool);
  CHECK(slots->size() == 15);
  CHECK(slots->index({2, 0}) == 0);
  CHECK(slots->index({2, 4}) == 4);
  CHECK(slots->index({4, 3}) == 13);
  CHECK(slots->layer(4) == 2);
  CHECK(slots->layers() == 3);
  CHECK(slots->experts() == 5);
}

TEST_CASE("layers behind the present one come round at the end of the pool") {
  Placed<SlotExperts> slots(pool);
  // (other - now + 3) mod 3, by hand; rows: now = 2, 3, 4; columns: other = 2, 3, 4.
  const std::uint32_t expected[3][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
  for (std::uint16_t now = 0; now < 3; ++now) {
    for (std::uint16_t other = 0; other < 3; ++other) {
      const ExpertId from{static_cast<std::uint16_t>(2 + now), 0};
      CHECK(slots->distance({static_cast<std::uint16_t>(2 + other), 0}, from) == expected[now][other]);
    }
  }
}

TEST_CASE("the least worth among the slots not barred, the lowest slot of equals") {
  Placed<SlotExperts> slots(pool);
  const std::uint16_t experts[4] = {3, 1, 4, 1};
  for (std::uint32_t s = 0; s < 4; ++s) slots->put(s, {2, experts[s]});
  CHECK((*slots)[2] == ExpertId{2, 4});
  auto least = [&](std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
    const std::uint8_t flags[4] = {a, b, c, d};
    return slots->least({flags, 1}, [](ExpertId id) { return id.expert; });
  };
  CHECK(least(0, 0, 0, 0) == 1);
  CHECK(least(0, 1, 0, 0) == 3);
  CHECK(least(0, 1, 0, 1) == 0);
  CHECK(least(1, 1, 0, 1) == 2);
  CHECK(least(1, 1, 1, 1) == no_slot);
  CHECK(least(0, 2, 0, 0) == 1);  // a bar that does not count
}

TEST_CASE("a pool without slots has no least one") {
  Placed<SlotExperts> slots(PoolShape{0, 0, 1, 8});
  CHECK(slots->least({}, [](ExpertId id) { return id.expert; }) == no_slot);
}
