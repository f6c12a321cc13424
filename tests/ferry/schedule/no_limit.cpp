#include "ferry/schedule/no_limit.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("takes everything") {
  Request r[3];
  CHECK(NoLimit::take({r, 3}, 0) == 3);
  CHECK(NoLimit::take({r, 0}, 1000) == 0);
}
