#include "ferry/schedule/schedule.hpp"

#include <doctest/doctest.h>

#include "ferry/schedule/device_only.hpp"
#include "ferry/schedule/fifo.hpp"
#include "ferry/schedule/no_limit.hpp"
#include "support/random_load.hpp"

using namespace ferry;

TEST_CASE("is its three parts") {
  using Mixed = Schedule<NoLimit, test::Reversed, DeviceOnly>;
  static_assert(Scheduler<Mixed>);
  Request r[2];
  r[0].want.id.expert = 4;
  Mixed schedule;
  schedule.order(Phase::decode, {r, 2});
  CHECK(r[1].want.id.expert == 4);
  CHECK(schedule.take({r, 2}, 0) == 2);
}
