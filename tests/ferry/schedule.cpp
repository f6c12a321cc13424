#include "ferry/schedule.hpp"

#include <doctest/doctest.h>

#include "ferry/limit/no_limit.hpp"
#include "ferry/order/batch_size_order.hpp"
#include "ferry/placement/device_only.hpp"

using namespace ferry;

TEST_CASE("is its three parts") {
  using Mixed = Schedule<NoLimit, BatchSizeOrder, DeviceOnly>;
  static_assert(Scheduler<Mixed>);
  Request r[2];
  r[0].want.id.expert = 4;
  r[1].rows = 1;
  Mixed schedule;
  schedule.order(Phase::decode, true, {r, 2});
  CHECK(r[1].want.id.expert == 4);
  CHECK(schedule.take({}, {r, 2}) == 2);
  CHECK(schedule.further({}));
}
