#include "ferry/detail/top_scores.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <new>
#include <vector>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct ScoresFixture {
  ScoresFixture(const Shape& shape, float alpha) {
    Carver carve(block + 128);
    top.reserve(carve, shape, alpha);
  }
  void mark(const std::vector<float>& s) { top.mark(scores(0, s)); }
  alignas(64) std::byte block[512];
  detail::TopScores& top = *new (block) detail::TopScores;
};

}  // namespace

TEST_CASE("top-score is above (1 + alpha) times the (k+1)-th score, in any row") {
  ScoresFixture f(Shape{1, 5, 2, 2}, 0.5F);
  // Row 0: beta = 0.2 (expert 2), bar 0.3: expert 0 is top-score, expert 1 (0.3) is not above it.
  // Row 1: beta = 0.1 (expert 0), bar 0.15: experts 4 and 1 are.
  f.mark({0.4F, 0.3F, 0.2F, 0.1F, 0.0F, 0.1F, 0.2F, 0.0F, 0.0F, 0.7F});
  CHECK(f.top[0]);
  CHECK(f.top[1]);
  CHECK_FALSE(f.top[2]);
  CHECK_FALSE(f.top[3]);
  CHECK(f.top[4]);
  f.mark({0.4F, 0.25F, 0.2F, 0.1F, 0.05F});
  CHECK(f.top[0]);
  CHECK_FALSE(f.top[1]);
  CHECK_FALSE(f.top[4]);
}

TEST_CASE("where every expert is chosen there is no (k+1)-th score: all are top-score") {
  ScoresFixture f(Shape{1, 2, 2, 1}, 0.5F);
  f.mark({0.5F, 0.5F});
  CHECK(f.top[0]);
  CHECK(f.top[1]);
}

TEST_CASE("a (k+1)-th score that is not a number is no rival either") {
  ScoresFixture f(Shape{1, 3, 2, 1}, 0.5F);
  f.mark({0.5F, std::numeric_limits<float>::quiet_NaN(), 0.4F});
  CHECK(f.top[0]);
  CHECK(f.top[2]);
}

TEST_CASE("a negative alpha turns it off") {
  ScoresFixture f(Shape{1, 2, 1, 1}, -1.0F);
  CHECK_FALSE(f.top.on());
  f.mark({0.5F, 0.5F});
}
