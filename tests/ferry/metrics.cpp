#include "ferry/metrics.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("ratios of nothing are zero") {
  CHECK(Outcomes{}.hit_rate() == 0.0);
  CHECK(PrefetchCounts{}.recall() == 0.0);
  CHECK(PrefetchCounts{}.precision() == 0.0);
  CHECK(PrefetchCounts{}.top1() == 0.0);
}

TEST_CASE("the hit rate counts hits alone") {
  Outcomes o;
  o.requests = 8;
  o.hits = 2;
  o.late_hits = 4;
  CHECK(o.hit_rate() == doctest::Approx(0.25));
}
