#include "ferry/detail/best.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("the order: larger first, equal ones stay, NaN below everything") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), low = -std::numeric_limits<float>::infinity();
  CHECK(detail::ranks_above(2, 1));
  CHECK_FALSE(detail::ranks_above(1, 1));
  CHECK(detail::ranks_above(low, nan));
  CHECK_FALSE(detail::ranks_above(nan, low));
  CHECK_FALSE(detail::ranks_above(nan, nan));
}

TEST_CASE("the best of a row, all of it, and none of it") {
  const float s[] = {1, 5, 3, 5};
  Route best[4];
  detail::best_of(s, 4, 2, best);
  CHECK(best[0].expert == 1);
  CHECK(best[1].expert == 3);
  detail::best_of(s, 4, 4, best);
  CHECK(best[2].expert == 2);
  CHECK(best[3].expert == 0);
  detail::best_of(s, 4, 0, best);
  CHECK(best[0].expert == 1);
}

TEST_CASE("the best of rows of any length, against a stable sort") {
  Random random(17);
  const float special[] = {0.0F,
                           -0.0F,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(),
                           -std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::denorm_min(),
                           -std::numeric_limits<float>::max()};
  for (int i = 0; i < 2000; ++i) {
    const std::uint32_t n = random.between(1, i % 2 == 0 ? 70 : 300), k = random.between(0, i % 3 == 0 ? n : n / 8);
    std::vector<float> scores = random.scores(n, i % 5 == 0);
    for (float& x : scores) {
      x -= i % 7 == 0 ? 0.5F : 0.0F;
      if (i % 4 == 0 && random.chance(50)) x = special[random.below(8)];
    }
    std::vector<std::uint16_t> expected(n);
    std::iota(expected.begin(), expected.end(), std::uint16_t{0});
    std::stable_sort(expected.begin(), expected.end(), [&](std::uint16_t a, std::uint16_t b) {
      if (std::isnan(scores[a]) || std::isnan(scores[b])) return !std::isnan(scores[a]) && std::isnan(scores[b]);
      return scores[a] > scores[b];
    });
    std::vector<Route> best(n, Route{no_expert, 7.0F, 3});
    detail::best_of(scores.data(), n, k, best.data());
    for (std::uint32_t r = 0; r < n; ++r) {
      REQUIRE(best[r].expert == (r < k ? expected[r] : no_expert));
      REQUIRE(best[r].weight == (r < k ? 0.0F : 7.0F));
    }
  }
}
