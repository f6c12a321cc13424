#include "ferry/detail/live_sequences.hpp"

#include <doctest/doctest.h>

#include <new>

using namespace ferry;

TEST_CASE("the end of the last live sequence is noticed, and only that") {
  alignas(64) std::byte block[256];
  auto& live = *new (block) detail::LiveSequences;
  Carver carve(block + 64);
  live.reserve(carve, Shape{1, 1, 1, 3});
  const std::uint32_t prompt[] = {7, 7, 7}, batch[] = {7, 9};
  CHECK_FALSE(live.note({prompt, 3}));
  CHECK_FALSE(live.note({batch, 2}));
  CHECK(live.end(7));
  CHECK_FALSE(live.end(7));                // ended already
  CHECK_FALSE(live.end(5));                // never began
  CHECK_FALSE(live.note({batch + 1, 1}));  // 9 lives
  live.end(9);
  live.end(9);
  CHECK(live.note({prompt, 3}));
  CHECK_FALSE(live.note({prompt, 3}));  // said once
  live.end(7);
  CHECK(live.note({batch, 2}));
}

TEST_CASE("sequences beyond the largest batch are not noticed and do no harm") {
  alignas(64) std::byte block[256];
  auto& live = *new (block) detail::LiveSequences;
  Carver carve(block + 64);
  live.reserve(carve, Shape{1, 1, 1, 2});
  const std::uint32_t first[] = {1, 2}, second[] = {3, 4};
  live.note({first, 2});
  live.note({second, 2});
  CHECK(live.end(3));  // which may be one of those
  CHECK(live.end(1));
  CHECK_FALSE(live.note({first + 1, 1}));
  CHECK(live.end(2));
  CHECK(live.end(4));  // which may live, although all that are known have ended
  CHECK(live.note({first, 2}));
  CHECK_FALSE(live.end(4));
}
