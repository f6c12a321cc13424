#include "ferry/order/popularity_order.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("the most popular first in prefill, equal ones as they came, decode as it came") {
  const std::uint32_t rows[] = {1, 7, 3, 7, 3};
  Request r[5];
  for (std::uint16_t i = 0; i < 5; ++i) {
    r[i].want.id.expert = static_cast<std::uint16_t>(9 - i);
    r[i].rows = rows[i];
  }
  PopularityOrder::order(Phase::decode, true, {r, 5});
  for (int i = 0; i < 5; ++i) CHECK(r[i].want.id.expert == 9 - i);
  PopularityOrder::order(Phase::prefill, false, {r, 5});
  const int expected[] = {8, 6, 7, 5, 9};
  for (int i = 0; i < 5; ++i) CHECK(r[i].want.id.expert == expected[i]);
}
