#include "ferry/limit/no_limit.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("takes everything") {
  Request r[3];
  const PrefetchWindow spent{Phase::decode, 3, 100, 7, 1000};
  CHECK(NoLimit::take({}, {r, 3}) == 3);
  CHECK(NoLimit::take(spent, {r, 3}) == 3);
  CHECK(NoLimit::take(spent, {r, 0}) == 0);
  CHECK(NoLimit::further(spent));
}
