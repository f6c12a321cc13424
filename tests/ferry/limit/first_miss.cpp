#include "ferry/limit/first_miss.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("walks ahead over complete layers, stops behind the first with a miss, and takes all of that") {
  // Layers 1 to 4 ahead lack 0, 0, 2 and 1 of the experts predicted.
  const std::uint32_t lacks[] = {0, 0, 2, 1};
  const Request r[2];
  PrefetchWindow window;
  std::uint32_t taken[4] = {};
  for (std::uint16_t d = 1; d <= 4; ++d) {
    window.distance = d;
    if (!FirstMiss::further(window)) break;
    window.taken += taken[d - 1] = FirstMiss::take(window, {r, lacks[d - 1]});
  }
  CHECK(window.distance == 4);  // asked for, and not used
  CHECK(window.taken == 2);
  CHECK(taken[2] == 2);
  CHECK(taken[3] == 0);
}

TEST_CASE("one absent expert is enough to stop") {
  PrefetchWindow window;
  window.distance = 2;
  CHECK(FirstMiss::further(window));
  window.taken = 1;
  CHECK_FALSE(FirstMiss::further(window));
}
