#include "ferry/cache/score_window.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "support/cache_drive.hpp"
#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

ScoreWindow of(std::uint32_t iterations) {
  ScoreWindow policy;
  policy.iterations = iterations;
  return policy;
}

/// Slot s holds expert s of layer 0.
Placed<ScoreWindow> filled(std::uint32_t iterations, std::uint16_t experts) {
  Placed<ScoreWindow> window(PoolShape{experts, 0, 1, experts}, of(iterations));
  for (std::uint16_t s = 0; s < experts; ++s) window->replace(s, full(0, s), true);
  return window;
}

/// Keeps every score that it ever saw. Means are whole multiples of 2^-24 / 720720 (the least common multiple of 1 to 16).
struct NaiveWindow {
  NaiveWindow(PoolShape shape, std::uint32_t n) : pool(shape), iterations(n), seen(shape.layers), slots(shape.slots) {}
  void observe(const Scores& s) noexcept {
    std::vector<std::uint64_t> step(pool.experts);
    const std::uint32_t rows = s.weight.size / pool.experts;
    for (std::uint32_t e = 0; e < pool.experts; ++e) {
      double sum = 0;  // of integers: exact
      for (std::uint32_t row = 0; row < rows; ++row) {
        sum += std::round(16777216.0 * static_cast<double>(s.weight[row * pool.experts + e]));
      }
      step[e] = static_cast<std::uint64_t>(std::round(sum / rows));
    }
    seen[static_cast<std::size_t>(s.layer - pool.first_layer)].push_back(step);
  }
  void touch(Variant, std::uint32_t) {}
  std::uint32_t victim(Variant, Barred barred) {
    return slots.least(barred, [&](ExpertId id) {
      const auto& all = seen[static_cast<std::size_t>(id.layer - pool.first_layer)];
      const std::size_t count = std::min<std::size_t>(all.size(), iterations);
      std::uint64_t sum = 0;
      for (std::size_t i = all.size() - count; i < all.size(); ++i) sum += all[i][id.expert];
      return count == 0 ? 0 : sum * (720720 / count);
    });
  }
  void replace(std::uint32_t slot, Variant what, bool) { slots.put(slot, what.id); }

  PoolShape pool;
  std::uint32_t iterations;
  std::vector<std::vector<std::vector<std::uint64_t>>> seen;  // [layers][steps][experts]
  SlotList slots;
};

static_assert(part::needs_full_scores<ScoreWindow>());
static_assert(!part::Resets<ScoreWindow>, "the window does not end with a sequence");

}  // namespace

TEST_CASE("an expert that is never chosen but always close outlives one that was chosen once") {
  // Top-1 of three experts, a window of 4. Expert 0 has 0.75 once and then nothing, expert 1 always 0.25, the second.
  //   step   mean of 0          mean of 1
  //   1      0.75               0.25
  //   2      0.75 / 2 = 0.375   0.25
  //   3      0.75 / 3 = 0.25    0.25        a tie goes to the lower slot
  //   4      0.75 / 4 = 0.1875  0.25
  Placed<ScoreWindow> window = filled(4, 3);
  const std::uint8_t not_2[3] = {0, 0, 1};
  const std::uint32_t expected[4] = {1, 1, 0, 0};
  for (int step = 1; step <= 4; ++step) {
    CAPTURE(step);
    const std::vector<float> row = step == 1 ? std::vector{0.75F, 0.25F, 0.0F} : std::vector{0.0F, 0.25F, 0.75F};
    window->observe(scores(0, row));
    CHECK(window->victim(full(0, 2), {not_2, 1}) == expected[step - 1]);
  }
}

TEST_CASE("the window slides after exactly n iterations") {
  // Expert 1 has 1.0 once, expert 0 always 0.125: in a window of n <= 7 the mean 1/n is above 0.125 for n steps, and 0
  // after that.
  for (const std::uint32_t n : {1U, 2U, 3U, 7U}) {
    CAPTURE(n);
    Placed<ScoreWindow> window = filled(n, 2);
    window->observe(scores(0, {0.125F, 1.0F}));
    for (std::uint32_t after = 0; after < 3 * n; ++after) {
      CAPTURE(after);
      CHECK(order_of_eviction(*window, 2, full(0, 1)) == (after < n ? Order{0, 1} : Order{1, 0}));
      window->observe(scores(0, {0.125F, 0.0F}));
    }
  }
}

TEST_CASE("layers seen a different number of times compare by their means") {
  // Layer 3: 0.5 and 0.25, mean 0.375, sum 0.75. Layer 4: once 0.5. Layer 5: never, 0. By sums 4 would go before 3.
  Placed<ScoreWindow> window(PoolShape{3, 3, 3, 1}, of(16));
  for (std::uint16_t s = 0; s < 3; ++s) window->replace(s, full(static_cast<std::uint16_t>(3 + s), 0), true);
  window->observe(scores(3, {0.5F}));
  window->observe(scores(4, {0.5F}));
  window->observe(scores(4, {}));  // no rows: no iteration
  window->observe(scores(3, {0.25F}));
  CHECK(order_of_eviction(*window, 3, full(3, 0)) == Order{2, 0, 1});
}

TEST_CASE("a step's score of an expert is the mean over its rows, and a step is one iteration") {
  // Step 1 has four rows: means 0.25 and 0.5. Step 2 has one row: 0.625 and 0.25. Means over the two iterations: 0.4375
  // and 0.375. Over the five rows they would be 0.325 and 0.45, the other way round.
  Placed<ScoreWindow> window = filled(2, 2);
  window->observe(scores(0, {1.0F, 0.5F, 0.0F, 0.5F, 0.0F, 0.5F, 0.0F, 0.5F}));
  CHECK(order_of_eviction(*window, 2, full(0, 1)) == Order{0, 1});
  window->observe(scores(0, {0.625F, 0.25F}));
  CHECK(order_of_eviction(*window, 2, full(0, 1)) == Order{1, 0});
}

TEST_CASE("the window ranks by what scales the output, in 0 to 1") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Placed<ScoreWindow> window = filled(4, 4);
  const std::vector<float> weight{0.25F, nan, -8.0F, 0.125F}, select{0.0F, 0.25F, 0.5F, 0.75F};
  window->observe({0, {select.data(), 4}, {weight.data(), 4}});
  CHECK(order_of_eviction(*window, 4, full(0, 1)) == Order{1, 2, 3, 0});
  // 9 counts as 1: sums 1.25, 1, 1, 1.125.
  window->observe(scores(0, {1.0F, 9.0F, 1.0F, 1.0F}));
  CHECK(order_of_eviction(*window, 4, full(0, 1)) == Order{1, 2, 3, 0});
}

TEST_CASE("scores outlive eviction and are kept of experts that are absent") {
  Placed<ScoreWindow> window(PoolShape{2, 0, 1, 3}, of(8));
  window->observe(scores(0, {0.5F, 0.25F, 0.125F}));
  window->replace(0, full(0, 1), true);
  window->replace(1, full(0, 2), true);
  CHECK(order_of_eviction(*window, 2, full(0, 0)) == Order{1, 0});
  window->observe(scores(0, {0.5F, 0.0F, 0.25F}));
  CHECK(order_of_eviction(*window, 2, full(0, 0)) == Order{0, 1});  // 0.25 against 0.375
}

TEST_CASE("ScoreWindow against a naive list of all scores, victim by victim") {
  std::uint64_t seed = 0;
  for (const std::uint32_t n : {1U, 5U, 16U}) {
    for (const bool coarse : {true, false}) {
      Drive d;
      d.pool.layers = 4;
      d.coarse_scores = coarse;
      Placed<ScoreWindow> window(d.pool, of(n));
      NaiveWindow naive(d.pool, n);
      const Driven result = drive(*window, naive, ++seed, d);
      CHECK(result.different == 0);
      CHECK(result.victims > 500);
      CHECK(result.slots == d.pool.slots);
    }
  }
}

TEST_CASE("a window without iterations is refused") {
  CHECK_THROWS_WITH_AS((Placed<ScoreWindow>(PoolShape{2, 0, 1, 8}, of(0))),
                       "ScoreWindow: iterations is 0, expected 1 to 4096", ConfigError);
  CHECK_THROWS_AS((Placed<ScoreWindow>(PoolShape{2, 0, 1, 8}, of(65536))), ConfigError);
}
