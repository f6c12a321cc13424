#include "ferry/router/best.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace ferry;

TEST_CASE("the order: larger first, equal ones stay, NaN below everything") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), low = -std::numeric_limits<float>::infinity();
  CHECK(ranks_above(2, 1));
  CHECK_FALSE(ranks_above(1, 1));
  CHECK(ranks_above(low, nan));
  CHECK_FALSE(ranks_above(nan, low));
  CHECK_FALSE(ranks_above(nan, nan));
}

TEST_CASE("the best of a row, all of it, and none of it") {
  const float s[] = {1, 5, 3, 5};
  Route best[4];
  best_of(s, 4, 2, best);
  CHECK(best[0].expert == 1);
  CHECK(best[1].expert == 3);
  best_of(s, 4, 4, best);
  CHECK(best[2].expert == 2);
  CHECK(best[3].expert == 0);
  best_of(s, 4, 0, best);
  CHECK(best[0].expert == 1);
}
