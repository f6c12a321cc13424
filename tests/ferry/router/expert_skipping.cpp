#include "ferry/router/expert_skipping.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/policies.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

ExpertSkipping within(float max_loss, float loss_rate) {
  ExpertSkipping router;
  router.max_loss = max_loss;
  router.loss_rate = loss_rate;
  return router;
}

/// [rows, k] routes to experts 0, 1, ... of each row, or to those that are named.
std::vector<Route> routes(const std::vector<float>& weights, std::vector<std::uint16_t> experts = {}) {
  std::vector<Route> all;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    all.push_back({experts.empty() ? static_cast<std::uint16_t>(i) : experts[i], weights[i], no_expert});
  }
  return all;
}

/// Which of them still run.
std::vector<bool> run(ExpertSkipping& router, std::vector<Route> all, Phase phase = Phase::decode) {
  router.revise(phase, {all.data(), static_cast<std::uint32_t>(all.size())});
  std::vector<bool> runs;
  for (const Route& r : all) runs.push_back(r.expert != no_expert);
  return runs;
}

using Runs = std::vector<bool>;

}  // namespace

TEST_CASE("a squared weight up to the allowance is left out at first, and keeps its name") {
  // 0.01 may be spent: 0.09 and 0.0225 are more, 0.0025 is less.
  Placed<ExpertSkipping> router(Shape{2, 8, 4, 4}, within(1, 100));
  std::vector<Route> all = routes({.5F, .3F, .15F, .05F}, {6, 2, 7, 1});
  router->revise(Phase::decode, {all.data(), 4});
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(all[i].expert != no_expert);
    CHECK(all[i].instead_of == no_expert);
  }
  CHECK(all[0].weight == .5F);  // what is left keeps its weight
  CHECK(all[3].expert == no_expert);
  CHECK(all[3].instead_of == 1);
  CHECK(all[3].weight == 0.0F);
}

TEST_CASE("a row's best expert always runs, and so does what is not a number") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Placed<ExpertSkipping> router(Shape{2, 8, 4, 4}, within(100, 1));
  CHECK(run(*router, routes({.01F, nan, .01F, 0})) == Runs{true, true, false, false});
  Placed<ExpertSkipping> alone(Shape{2, 8, 1, 4}, within(100, 1));
  CHECK(run(*alone, routes({.01F, .02F})) == Runs{true, true});
}

TEST_CASE("prefill leaves out nothing, and neither does a loss of 0") {
  Placed<ExpertSkipping> router(Shape{2, 8, 4, 4}, within(100, 1));
  CHECK(run(*router, routes({.5F, .1F, .1F, .1F}), Phase::prefill) == Runs{true, true, true, true});
  Placed<ExpertSkipping> lossless(Shape{2, 8, 4, 4}, within(0, 1));
  for (int i = 0; i < 1000; ++i) CHECK(run(*lossless, routes({.5F, 0, 0, 0})) == Runs{true, true, true, true});
}

TEST_CASE("rows that chose the same expert leave it out together or not at all") {
  // 0.01 may be spent. Expert 1: 0.0064 twice. Expert 2: 0.0025 and 0.0064. Expert 3 is another row's best.
  Placed<ExpertSkipping> router(Shape{2, 8, 4, 4}, within(1, 100));
  CHECK(run(*router, routes({.8F, .08F, .05F, .01F, .8F, .08F, .08F, .01F}, {0, 1, 2, 3, 3, 1, 2, 4})) ==
        Runs{true, true, false, true, true, true, false, false});
}

TEST_CASE("assignments that are no expert's stay, and rows without any earn nothing") {
  Placed<ExpertSkipping> router(Shape{2, 8, 2, 4}, within(1, 100));
  std::vector<Route> all = routes({.5F, .01F, 0, 0});
  all[2] = all[3] = Route{};
  router->revise(Phase::decode, {all.data(), 4});
  CHECK(all[1].expert == no_expert);
  CHECK(all[2].instead_of == no_expert);
  std::vector<Route> none(2);
  router->revise(Phase::decode, {none.data(), 2});
  CHECK(router->check() == nullptr);
}

TEST_CASE("in the mean a row and layer spends what it may, whatever the weights are") {
  for (const float allowance : {.001F, .01F, .03F}) {
    for (const std::uint32_t rows : {1U, 3U}) {
      for (const float flat : {.2F, 1.0F, 3.0F}) {
        if (quick() && (allowance == .001F) != (rows == 3)) continue;
        CAPTURE(allowance);
        CAPTURE(rows);
        CAPTURE(flat);
        constexpr std::uint32_t layers = 6, k = 8, warm = 500;
        const std::uint32_t tokens = quick() ? 1500 : 4000;
        Placed<ExpertSkipping> router(Shape{layers, 64, k, 4}, within(2 * allowance, 2));
        Random random(7);
        double spent = 0, possible = 0;
        for (std::uint32_t i = 0; i < tokens * layers; ++i) {
          std::vector<float> weights;
          std::vector<std::uint16_t> experts;
          for (std::uint32_t row = 0; row < rows; ++row) {
            std::vector<float> of(k);
            float sum = 0;
            for (float& w : of) sum += w = std::pow(static_cast<float>(random.between(1, 1000)) / 1000, flat);
            std::sort(of.rbegin(), of.rend());
            for (std::uint32_t j = 0; j < k; ++j) {
              weights.push_back(of[j] / sum);
              experts.push_back(static_cast<std::uint16_t>((random.below(8) * 8 + j) % 64));
              if (j > 0 && i >= warm * layers) possible += weights.back() * weights.back();
            }
          }
          const Runs runs = run(*router, routes(weights, experts));
          for (std::size_t j = 0; j < runs.size(); ++j) {
            if (!runs[j] && i >= warm * layers) spent += weights[j] * weights[j];
          }
        }
        const double steps = rows * (tokens - warm) * layers;
        const double most = possible / steps;  // all but the best
        CHECK(spent / steps <= 1.02 * allowance);
        CHECK(spent / steps >= .9 * std::min<double>(allowance, most));
      }
    }
  }
}

TEST_CASE("what one step spends at once is owed: even rows that leave out all or nothing keep to the mean") {
  for (const std::uint32_t layers : {8U, 4U, 1U}) {
    const float max_loss = layers == 8 ? .01F : layers == 4 ? .1F : .001F;
    CAPTURE(layers);
    Placed<ExpertSkipping> router(Shape{static_cast<std::uint16_t>(layers), 8, 2, 4}, within(max_loss, 150));
    const double allowance = double{max_loss} / 150;
    const std::uint32_t tokens = quick() && layers > 1 ? 50'000 : 200'000;
    double spent = 0;
    for (std::uint32_t i = 0; i < tokens * layers; ++i) {
      if (!run(*router, routes({.5F, .5F}))[1]) spent += .25;
    }
    CHECK(spent / (tokens * layers) <= 1.1 * allowance);
    CHECK(spent > 0);
  }
}

TEST_CASE("the first expert that a row has runs, wherever it stands") {
  Placed<ExpertSkipping> router(Shape{2, 8, 3, 4}, within(100, 1));
  std::vector<Route> all = {{}, {3, .05F, no_expert}, {4, .04F, no_expert}};
  router->revise(Phase::decode, {all.data(), 3});
  CHECK(all[1].expert == 3);
  CHECK(all[2].expert == no_expert);
  CHECK(all[2].instead_of == 4);
}

TEST_CASE("what could not be spent for long is not made up for later beyond a bound") {
  // While all weights are large nothing can be left out, and the threshold rises to its limit. Then all weights are small.
  constexpr std::uint32_t layers = 4;
  constexpr double allowance = .01;
  for (const std::uint32_t tokens : {10U, 100U, 1000U}) {
    Placed<ExpertSkipping> router(Shape{layers, 8, 4, 4}, within(1, 100));
    for (std::uint32_t i = 0; i < 20000 * layers; ++i) run(*router, routes({2.0F, 1.5F, 1.5F, 1.5F}));
    double spent = 0;
    for (std::uint32_t i = 0; i < tokens * layers; ++i) {
      const std::vector<float> weights = {.4F, .2F, .2F, .2F};
      const Runs runs = run(*router, routes(weights));
      for (std::size_t j = 0; j < runs.size(); ++j) spent += runs[j] ? 0 : weights[j] * weights[j];
    }
    CAPTURE(tokens);
    CHECK(spent > allowance * layers);
    CHECK(spent <= (tokens + 64 * std::log(std::pow(2, 24))) * layers * allowance);
  }
}

TEST_CASE("what may not be is refused") {
  const Shape shape{2, 8, 4, 4};
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  for (const auto& [max_loss, loss_rate] : {std::pair{-1.0F, 1.0F},
                                            {101.0F, 1.0F},
                                            {nan, 1.0F},
                                            {1.0F, 0.0F},
                                            {1.0F, -1.0F},
                                            {1.0F, nan},
                                            {1.0F, infinite}}) {
    Carver carve;
    ExpertSkipping router = within(max_loss, loss_rate);
    CHECK_THROWS_AS(router.reserve(carve, shape), ConfigError);
  }
}
