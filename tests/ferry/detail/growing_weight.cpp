#include "ferry/detail/growing_weight.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

detail::GrowingWeight halving(std::uint32_t half_life) {
  detail::GrowingWeight weight;
  weight.set(half_life, "Test");
  return weight;
}

}  // namespace

TEST_CASE("a weight doubles each half-life, and is divided when it has grown sixteenfold") {
  for (const std::uint32_t half_life : {1U, 7U, 300U, 4096U}) {
    CAPTURE(half_life);
    detail::GrowingWeight weight = halving(half_life);
    int divisions = 0;
    for (int doubling = 0; doubling < 20; ++doubling) {
      double expected = static_cast<double>(weight());
      for (std::uint32_t step = 0; step < half_life; ++step) {
        expected *= std::exp2(1.0 / half_life);
        if (weight.begin_step(StepOf(Phase::decode, 3))) {
          expected /= 16;
          ++divisions;
        }
        REQUIRE(weight.is_valid());
        REQUIRE(static_cast<double>(weight()) == doctest::Approx(expected).epsilon(0.001));
      }
    }
    CHECK((divisions == 4 || divisions == 5));
  }
}

TEST_CASE("a prompt is as many steps as rows, and no more than an eighth of the half-life") {
  detail::GrowingWeight weight = halving(64);
  weight.begin_step(StepOf(Phase::prefill, 5));
  CHECK(weight.steps() == 5);
  CHECK(static_cast<double>(weight()) == doctest::Approx(65536 * std::exp2(5.0 / 64)).epsilon(0.001));
  weight.begin_step(StepOf(Phase::prefill, 1000));
  CHECK(weight.steps() == 8);
  weight.begin_step(StepOf(Phase::decode, 3));
  CHECK(weight.steps() == 1);
  detail::GrowingWeight quick = halving(3);
  quick.begin_step(StepOf(Phase::prefill, 1000));
  CHECK(quick.steps() == 1);
}

TEST_CASE("a half-life that no counts can have is refused") {
  CHECK_THROWS_WITH_AS(halving(0), "Test: half_life is 0 steps, expected 1 to 4096", ConfigError);
  CHECK_THROWS_WITH_AS(halving(4097), "Test: half_life is 4097 steps, expected 1 to 4096", ConfigError);
}
