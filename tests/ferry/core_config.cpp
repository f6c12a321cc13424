#include "ferry/core_config.hpp"

#include <doctest/doctest.h>

#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("a precision that is not stored is refused with the fix") {
  CoreConfig<stacks::LruCache> c;
  c.model = model(2, 4, 1);
  c.allotment = everything(c.model);
  CHECK_NOTHROW(c.validate());
  c.precision.precision = Precision::int4;
  CHECK_THROWS_WITH_AS(
      c.validate(),
      "the precision selector asks for INT4 but layer 0 is not stored at it: store it, or choose "
      "another selector",
      ConfigError);
}

TEST_CASE("too few stream slots are refused unless everything has a slot") {
  CoreConfig<stacks::LruCache> c;
  c.model = model(2, 4, 1);
  c.allotment = everything(c.model);
  c.allotment.pools[1].slots = 3;
  CHECK_THROWS_WITH_AS(
      c.validate(),
      "the allotment has 0 stream slots, expected at least 2 unless every expert of every layer has "
      "a slot",
      ConfigError);
  c.allotment.stream_slots = 2;
  c.allotment.stream_slot_bytes = 64;
  CHECK_NOTHROW(c.validate());
}
