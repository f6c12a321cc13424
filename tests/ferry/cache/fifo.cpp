#include "ferry/cache/fifo.hpp"

#include <doctest/doctest.h>

#include "support/cache_simulator.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("the slot that was filled longest ago goes first, used or not") {
  Placed<FifoCache> fifo(PoolShape{3, 0, 1, 8});
  const std::uint8_t none[3] = {};
  for (const std::uint32_t s : {2U, 0U, 1U}) fifo->replace(s, full(0, static_cast<std::uint16_t>(s)), true);
  CHECK(fifo->victim(full(0, 5), {none, 1}) == 2);
  fifo->touch(full(0, 2), 2);
  CHECK(fifo->victim(full(0, 5), {none, 1}) == 2);
  fifo->replace(2, full(0, 5), false);  // a prefetch is filled now like any other
  CHECK(fifo->victim(full(0, 6), {none, 1}) == 0);
}

TEST_CASE("first in, first out passes over barred slots") {
  Placed<FifoCache> fifo(PoolShape{3, 0, 1, 8});
  for (std::uint32_t s = 0; s < 3; ++s) fifo->replace(s, full(0, static_cast<std::uint16_t>(s)), true);
  const std::uint8_t flags[3] = {1, 2, 0};
  CHECK(fifo->victim(full(0, 5), {flags, 1}) == 1);
  CHECK(fifo->victim(full(0, 5), {flags, 3}) == 2);
  const std::uint8_t all[3] = {1, 1, 1};
  CHECK(fifo->victim(full(0, 5), {all, 1}) == no_slot);
}

TEST_CASE("first in, first out shows Belady's anomaly") {
  // The textbook's example: 9 faults with three frames, 10 with four.
  const auto requests = requests_for({1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5});
  Placed<FifoCache> three(PoolShape{3, 0, 1, 8});
  Placed<FifoCache> four(PoolShape{4, 0, 1, 8});
  CHECK(hits(three, 3, requests) == 12 - 9);
  CHECK(hits(four, 4, requests) == 12 - 10);
}
