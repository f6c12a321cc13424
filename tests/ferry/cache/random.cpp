#include "ferry/cache/random.hpp"

#include <doctest/doctest.h>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

Placed<RandomVictim> seeded(std::uint32_t slots, std::uint64_t seed, std::uint16_t first_layer = 0) {
  RandomVictim random;
  random.seed = seed;
  return Placed<RandomVictim>(PoolShape{slots, first_layer, 1, 8}, random);
}

}  // namespace

TEST_CASE("random victims follow SplitMix64's published numbers") {
  // The first outputs for the seed 1234567, as published (Rosetta Code), and floor(10 x / 2^64) of each:
  //  6457827717110365317 = 0.350 * 2^64,  3203168211198807973 = 0.174 * 2^64, 9817491932198370423 = 0.532 * 2^64,
  //  4593380528125082431 = 0.249 * 2^64, 16408922859458223821 = 0.890 * 2^64
  auto random = seeded(10, 1234567);
  const std::uint8_t none[10] = {};
  for (const std::uint32_t expected : {3U, 1U, 5U, 2U, 8U}) {
    CHECK(random->victim(full(0, 1), {none, 1}) == expected);
    random->touch(full(0, 1), no_slot);
    random->touch(full(0, 2), 3);
    CHECK(random->victim(full(0, 2), {none, 1}) == expected);  // only `replace` draws anew
    random->replace(expected, full(0, 1), false);
  }
}

TEST_CASE("a random victim counts only slots that are not barred") {
  // 0.350, from the first output above, selects the first of two candidates, the second of three, and the only one of one.
  auto random = seeded(5, 1234567);
  const std::uint8_t flags[5] = {1, 2, 1, 2, 0};
  CHECK(random->victim(full(0, 1), {flags, 1}) == 3);  // of 1, 3, 4
  CHECK(random->victim(full(0, 1), {flags, 2}) == 2);  // of 0, 2, 4
  CHECK(random->victim(full(0, 1), {flags, 3}) == 4);  // of 4
  const std::uint8_t all[5] = {1, 1, 1, 1, 1};
  CHECK(random->victim(full(0, 1), {all, 1}) == no_slot);
}

TEST_CASE("random victims are spread evenly over what is not barred") {
  auto random = seeded(8, 1);
  const std::uint8_t flags[8] = {0, 1, 0, 0, 1, 0, 0, 0};
  constexpr std::uint32_t draws = 60000;
  std::uint32_t drawn[8] = {};
  for (std::uint32_t i = 0; i < draws; ++i) {
    const std::uint32_t slot = random->victim(full(0, 1), {flags, 1});
    REQUIRE(slot < 8);
    ++drawn[slot];
    random->replace(slot, full(0, 1), true);
  }
  for (std::uint32_t slot = 0; slot < 8; ++slot) {
    CAPTURE(slot);
    if (flags[slot] != 0) {
      CHECK(drawn[slot] == 0);
    } else {  // 10000 expected, standard deviation sqrt(60000 * 1/6 * 5/6) = 91: five of them
      CHECK(drawn[slot] > 9544);
      CHECK(drawn[slot] < 10456);
    }
  }
}

TEST_CASE("random victims differ by seed and by layer and repeat otherwise") {
  const std::uint8_t none[64] = {};
  auto equal = [&](Placed<RandomVictim> a, Placed<RandomVictim> b) {
    std::uint32_t same = 0;
    for (int i = 0; i < 100; ++i) {
      same += a->victim(full(0, 1), {none, 1}) == b->victim(full(0, 1), {none, 1}) ? 1 : 0;
      a->replace(0, full(0, 1), true);
      b->replace(0, full(0, 1), true);
    }
    return same;
  };
  CHECK(equal(seeded(64, 1), seeded(64, 1)) == 100);
  CHECK(equal(seeded(64, 1), seeded(64, 2)) < 20);
  CHECK(equal(seeded(64, 1, 0), seeded(64, 1, 1)) < 20);
}
