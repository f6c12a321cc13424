#include "ferry/placement/device_only.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("loads every miss") {
  const Request r[3];
  CHECK(DeviceOnly::split(Phase::decode, {r, 3}) == 3);
}
