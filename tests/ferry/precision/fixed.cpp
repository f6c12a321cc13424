#include "ferry/precision/fixed.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("sets one precision, and names it") {
  Request r[2];
  FixedPrecision{Precision::int8}.select(Phase::decode, {r, 2});
  CHECK(r[1].want.precision == Precision::int8);
  CHECK(FixedPrecision{Precision::int8}.precisions() == 1U << 3U);
  CHECK(FixedPrecision{}.precisions() == 1U << 4U);
}
