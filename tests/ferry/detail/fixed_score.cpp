#include "ferry/detail/fixed_score.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace ferry;

TEST_CASE("a score in units of two to the minus 24, rounded to the nearest") {
  CHECK(detail::fixed_score(0.0F) == 0);
  CHECK(detail::fixed_score(1.0F) == 16777216);
  CHECK(detail::fixed_score(0.5F) == 8388608);
  CHECK(detail::fixed_score(0x1p-24F) == 1);
  CHECK(detail::fixed_score(0x1p-25F) == 1);         // a half goes up
  CHECK(detail::fixed_score(0x1.fffffep-26F) == 0);  // the next lower float, for which adding 0.5 as a float gives 1
  CHECK(detail::fixed_score(0x1.8p-24F) == 2);       // 1.5
  CHECK(detail::fixed_score(0x1.2p-23F) == 2);       // 2.25
  // 0.1F is 13421773 * 2^-27: 13421773 / 8 = 1677721.625
  CHECK(detail::fixed_score(0.1F) == 1677722);
  CHECK(detail::fixed_score(std::numeric_limits<float>::denorm_min()) == 0);
}

TEST_CASE("scores outside 0 to 1 are clamped, NaN counts as 0") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(detail::fixed_score(-0.25F) == 0);
  CHECK(detail::fixed_score(-infinity) == 0);
  CHECK(detail::fixed_score(1.5F) == detail::fixed_one);
  CHECK(detail::fixed_score(infinity) == detail::fixed_one);
  static_assert(detail::fixed_score(std::numeric_limits<float>::quiet_NaN()) == 0);  // nor is a NaN ever converted
}

TEST_CASE("the mean of fixed scores, rounded to the nearest") {
  CHECK(detail::fixed_mean(0, 3) == 0);
  CHECK(detail::fixed_mean(7, 1) == 7);
  CHECK(detail::fixed_mean(7, 2) == 4);  // 3.5
  CHECK(detail::fixed_mean(7, 3) == 2);  // 2.33
  CHECK(detail::fixed_mean(8, 3) == 3);  // 2.67
  CHECK(detail::fixed_mean(std::int64_t{detail::fixed_one} * 5000, 5000) == detail::fixed_one);
}
