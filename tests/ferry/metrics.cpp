#include "ferry/metrics.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("ratios of nothing are zero") {
  CHECK(Outcomes{}.hit_rate() == 0.0);
  CHECK(Accuracy{}.recall() == 0.0);
  CHECK(PrefetchCounts{}.precision() == 0.0);
  CHECK(Accuracy{}.top1() == 0.0);
}

TEST_CASE("a miss at low precision costs its share of a miss at high precision") {
  Outcomes o;
  o.miss_bytes = 2 * 1600 + 3 * 400;  // two high, three low: 2 + 3/4
  CHECK(o.miss_penalty(1600) == doctest::Approx(2.75));
  CHECK(o.miss_penalty(0) == 0.0);
}

TEST_CASE("the hit rate counts hits alone") {
  Outcomes o;
  o.requests = 8;
  o.hits = 2;
  o.late_hits = 4;
  CHECK(o.hit_rate() == doctest::Approx(0.25));
}
