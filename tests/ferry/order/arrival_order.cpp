#include "ferry/order/arrival_order.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("leaves the order alone") {
  Request r[3];
  for (std::uint16_t i = 0; i < 3; ++i) r[i].want.id.expert = static_cast<std::uint16_t>(9 - i);
  ArrivalOrder::order(Phase::prefill, true, {r, 3});
  CHECK(r[0].want.id.expert == 9);
  CHECK(r[2].want.id.expert == 7);
}
