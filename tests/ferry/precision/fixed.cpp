#include "ferry/precision/fixed.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("sets one precision, and names it") {
  Request r[2];
  FixedPrecision{Precision::int8}.select(Phase::decode, true, {r, 2});
  CHECK(r[1].want.precision == Precision::int8);
  FixedPrecision{Precision::int4}.select(Phase::prefill, false, {r, 2});
  CHECK(r[0].want.precision == Precision::int4);
  CHECK(FixedPrecision{Precision::int8}.precisions() == 1U << 3U);
  CHECK(FixedPrecision{}.precisions() == 1U << 4U);
}
