#include "ferry/cache/score_average.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <numeric>

#include "support/cache_drive.hpp"
#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

ScoreAverage with(std::uint32_t alpha_percent, std::uint32_t top_p) {
  ScoreAverage policy;
  policy.alpha_percent = alpha_percent;
  policy.top_p = top_p;
  return policy;
}

/// Slot s holds expert s of layer 0.
Placed<ScoreAverage> filled(const ScoreAverage& policy, std::uint16_t experts) {
  Placed<ScoreAverage> average(PoolShape{experts, 0, 1, experts}, policy);
  for (std::uint16_t s = 0; s < experts; ++s) average->replace(s, full(0, s), true);
  return average;
}

/// The average with alpha 1/2 written out: the score of i steps ago weighs 2^-(i+1). Exact for scores in eighths, two
/// rows and 48 steps: 52 bits.
struct NaiveAverage {
  NaiveAverage(PoolShape shape, std::uint32_t top_p) : pool(shape), p(top_p), seen(shape.layers), slots(shape.slots) {}
  void observe(const Scores& s) noexcept {
    std::vector<double> step(pool.experts);
    const std::uint32_t rows = s.weight.size / pool.experts;
    for (std::uint32_t row = 0; row < rows; ++row) {
      const float* of = s.weight.data + row * pool.experts;
      std::vector<std::uint32_t> order(pool.experts);
      std::iota(order.begin(), order.end(), 0U);
      std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return of[a] > of[b]; });
      for (std::uint32_t i = 0; i < p; ++i) step[order[i]] += static_cast<double>(of[order[i]]) / rows;
    }
    seen[static_cast<std::size_t>(s.layer - pool.first_layer)].push_back(step);
  }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant, Barred barred) {
    return slots.least(barred, [&](ExpertId id) {
      const auto& all = seen[static_cast<std::size_t>(id.layer - pool.first_layer)];
      double sum = 0, weight = 0.5;
      for (std::size_t i = all.size(); i-- > 0; weight /= 2) sum += weight * all[i][id.expert];
      return sum;
    });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  PoolShape pool;
  std::uint32_t p;
  std::vector<std::vector<std::vector<double>>> seen;  // [layers][steps][experts]
  SlotList slots;
};

static_assert(part::needs_full_scores<ScoreAverage>());
static_assert(!part::Resets<ScoreAverage>, "the average does not end with a sequence");

}  // namespace

TEST_CASE("S = alpha TopP(s) + (1 - alpha) S by hand, alpha a half") {
  // Expert 0 has 0.75 once and then nothing, expert 1 always 0.25.
  //   step   S of 0                    S of 1
  //   1      0.75 / 2 = 0.375          0.25 / 2 = 0.125
  //   2      0.375 / 2 = 0.1875        (0.25 + 0.125) / 2 = 0.1875     a tie goes to the lower slot
  //   3      0.09375                   0.21875
  Placed<ScoreAverage> average = filled(with(50, 2), 2);
  average->observe(scores(0, {0.75F, 0.25F}));
  CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{1, 0});
  average->observe(scores(0, {0.0F, 0.25F}));
  CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{0, 1});
  average->replace(0, full(0, 1), true);
  average->replace(1, full(0, 0), true);
  CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{0, 1});  // so it was a tie
  average->observe(scores(0, {0.0F, 0.25F}));
  CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{1, 0});
}

TEST_CASE("alpha is what the newest scores weigh") {
  // Expert 0: 0.5, then 0.25. Expert 1: 0.25, then 0.5.
  // alpha 20%: 0.8 * 0.2 * 0.5 + 0.2 * 0.25 = 0.13 against 0.8 * 0.2 * 0.25 + 0.2 * 0.5 = 0.14; three more steps of
  // (0.5, 0.375) give S0 = 0.13 * 0.512 + 0.488 * 0.5 = 0.31056 and S1 = 0.14 * 0.512 + 0.488 * 0.375 = 0.25468.
  // alpha 100%: the last scores alone.
  for (const std::uint32_t alpha : {20U, 100U}) {
    Placed<ScoreAverage> average = filled(with(alpha, 2), 2);
    average->observe(scores(0, {0.5F, 0.25F}));
    average->observe(scores(0, {0.25F, 0.5F}));
    CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{0, 1});
    for (int i = 0; i < 3; ++i) average->observe(scores(0, {0.5F, 0.375F}));
    CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{1, 0});
    average->observe(scores(0, {0.0F, 0.125F}));  // 0.24845 against 0.22874; 0 against 0.125
    CHECK(order_of_eviction(*average, 2, full(0, 1)) == (alpha == 20 ? Order{1, 0} : Order{0, 1}));
  }
}

TEST_CASE("scores below the p best of a row count as nothing") {
  // Expert 2 is third in the first and the last row.
  for (const std::uint32_t p : {2U, 3U}) {
    Placed<ScoreAverage> average = filled(with(50, p), 3);
    average->observe(scores(0, {0.25F, 0.5F, 0.1875F}));
    for (int i = 0; i < 4; ++i) average->observe(scores(0, {0.0F, 0.5F, 0.1875F}));
    average->observe(scores(0, {0.25F, 0.5F, 0.1875F}));
    // S0 = 0.125 / 32 + 0.125 = 0.1289; S2 = 0.1875 (1 - 1/64) = 0.1846, or, with p = 2: second in the four rows
    // between, 0.1875 (1 - 1/16) / 2 = 0.0879.
    CHECK(order_of_eviction(*average, 3, full(0, 1)) == (p == 3 ? Order{0, 2, 1} : Order{2, 0, 1}));
  }
}

TEST_CASE("more than all experts cannot count, and the default does not depend on their number") {
  Placed<ScoreAverage> average = filled({}, 3);
  average->observe(scores(0, {0.5F, 0.125F, 0.25F}));
  CHECK(order_of_eviction(*average, 3, full(0, 1)) == Order{1, 2, 0});
}

TEST_CASE("each row has its own p best, a step's score is the mean over its rows") {
  // p = 1. Row 1 counts expert 0 with 0.5, row 2 expert 1 with 0.75, row 3 expert 1 with 0.25: 0.5/3 against 1/3.
  // Expert 2, never first, gets nothing although its mean over the rows is the highest but one.
  Placed<ScoreAverage> average = filled(with(50, 1), 3);
  average->observe(scores(0, {0.5F, 0.0F, 0.4375F, 0.0F, 0.75F, 0.4375F, 0.0F, 0.25F, 0.1875F}));
  CHECK(order_of_eviction(*average, 3, full(0, 1)) == Order{2, 0, 1});
  // One row is one iteration, as three are: S0 = (0.5 + 1/6 / 2) / 2 is now above S1 = 1/12.
  average->observe(scores(0, {0.5F, 0.0F, 0.0F}));
  CHECK(order_of_eviction(*average, 3, full(0, 1)) == Order{2, 1, 0});
  average->observe(scores(0, {}));  // no rows: no iteration
  CHECK(order_of_eviction(*average, 3, full(0, 1)) == Order{2, 1, 0});
}

TEST_CASE("the average ranks by what scales the output, in 0 to 1") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Placed<ScoreAverage> average = filled(with(50, 4), 4);
  const std::vector<float> weight{0.25F, nan, -8.0F, 0.125F}, select{0.0F, 0.25F, 0.5F, 0.75F};
  average->observe({0, {select.data(), 4}, {weight.data(), 4}});
  CHECK(order_of_eviction(*average, 4, full(0, 1)) == Order{1, 2, 3, 0});
  average->observe(scores(0, {1.0F, 9.0F, 1.0F, 1.0F}));  // 9 counts as 1
  CHECK(order_of_eviction(*average, 4, full(0, 1)) == Order{1, 2, 3, 0});
}

TEST_CASE("scores of long ago still tell experts apart") {
  // 2^-41 against 2^-40 after forty steps without a score.
  Placed<ScoreAverage> average = filled(with(50, 2), 2);
  average->observe(scores(0, {0.0F, 1.0F}));
  average->observe(scores(0, {1.0F, 0.0F}));
  for (int i = 0; i < 39; ++i) average->observe(scores(0, {0.0F, 0.0F}));
  CHECK(order_of_eviction(*average, 2, full(0, 1)) == Order{1, 0});
}

TEST_CASE("layers are averaged apart, and scores outlive eviction") {
  Placed<ScoreAverage> average(PoolShape{2, 5, 2, 2}, with(50, 2));
  average->replace(0, full(5, 1), true);
  average->replace(1, full(6, 1), true);
  average->observe(scores(5, {0.0F, 0.5F}));
  average->observe(scores(6, {0.75F, 0.25F}));
  CHECK(order_of_eviction(*average, 2, full(5, 0)) == Order{1, 0});
  average->replace(1, full(6, 0), true);
  CHECK(order_of_eviction(*average, 2, full(5, 0)) == Order{0, 1});
}

TEST_CASE("ScoreAverage against the average written out, victim by victim") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::uint32_t p = seed % 2 == 0 ? 4 : 8;
    Drive d;
    d.steps = 48;
    d.max_rows = 2;
    Placed<ScoreAverage> average(d.pool, with(50, p));
    NaiveAverage naive(d.pool, p);
    const Driven result = drive(*average, naive, seed, d);
    CHECK(result.different == 0);
    CHECK(result.victims > 100);
    CHECK(result.slots == d.pool.slots);
  }
}

TEST_CASE("an average of nothing is refused") {
  const PoolShape pool{2, 0, 1, 8};
  CHECK_THROWS_WITH_AS((Placed<ScoreAverage>(pool, with(0, 2))), "ScoreAverage: alpha_percent is 0, expected 1 to 100",
                       ConfigError);
  CHECK_THROWS_WITH_AS((Placed<ScoreAverage>(pool, with(101, 2))),
                       "ScoreAverage: alpha_percent is 101, expected 1 to 100", ConfigError);
  CHECK_THROWS_WITH_AS((Placed<ScoreAverage>(pool, with(50, 0))),
                       "ScoreAverage: top_p is 0, expected at least 1, typically twice the model's k", ConfigError);
}
