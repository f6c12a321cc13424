#include "ferry/detail/choice_regression.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct RegressionSize {
  std::uint32_t tables, inputs, experts;
};
/// detail::ChoiceRegression is no policy; it is placed like one.
struct Regression : detail::ChoiceRegression {
  void reserve(Carver& carve, const RegressionSize& s) {
    detail::ChoiceRegression::reserve(carve, s.tables, s.inputs, s.experts);
  }
};

std::vector<double> ask_learned(Placed<Regression>& learned, std::uint32_t table,
                                const std::vector<std::uint32_t>& inputs, std::uint32_t experts) {
  learned->clear();
  for (const std::uint32_t i : inputs) learned->add(i);
  const std::int32_t* p = learned->ask(table);
  std::vector<double> all;
  for (std::uint32_t e = 0; e < experts; ++e) all.push_back(p[e] / static_cast<double>(Regression::one));
  return all;
}

/// The same regression with real numbers.
struct NaiveRegression {
  explicit NaiveRegression(const RegressionSize& size)
      : s(size), w(std::size_t{s.tables} * (s.inputs + 1) * s.experts) {
    for (std::uint32_t t = 0; t < s.tables; ++t) {
      for (std::uint32_t e = 0; e < s.experts; ++e) at(t, s.inputs, e) = -2;
    }
  }
  double& at(std::uint32_t table, std::uint32_t input, std::uint32_t e) {
    return w[(std::size_t{table} * (s.inputs + 1) + input) * s.experts + e];
  }
  double ask(std::uint32_t table, const std::vector<std::uint32_t>& inputs, std::uint32_t e) {
    double x = at(table, s.inputs, e);
    for (const std::uint32_t i : inputs) x += at(table, i, e);
    x = std::max(-4.0, std::min(4.0, x));
    return 0.5 + x / 4 - (x < 0 ? -1 : 1) * x * x / 32;
  }
  void learn(std::uint32_t table, const std::vector<std::uint32_t>& inputs, std::uint32_t e, double right) {
    const double more = 0.1 * (right - ask(table, inputs, e));
    at(table, s.inputs, e) += more;
    for (const std::uint32_t i : inputs) at(table, i, e) += more;
  }
  RegressionSize s;
  std::vector<double> w;
};

}  // namespace

TEST_CASE("at first every expert has one chance in eight, and weights that are set count") {
  Placed<Regression> learned(RegressionSize{2, 3, 4});
  CHECK(ask_learned(learned, 0, {}, 4) == std::vector<double>(4, 0.125));
  learned->set(1, 2, 3, 2 * Regression::weight_of_1);
  CHECK(ask_learned(learned, 1, {2}, 4) == std::vector<double>{0.125, 0.125, 0.125, 0.5});
  CHECK(ask_learned(learned, 0, {2}, 4) == std::vector<double>(4, 0.125));
  learned->set(1, 2, 3, 7 * Regression::weight_of_1);
  CHECK(ask_learned(learned, 1, {2}, 4)[3] == 1);  // above 4
  learned->set(1, 2, 3, -3 * Regression::weight_of_1);
  CHECK(ask_learned(learned, 1, {2}, 4)[3] == 0);
}

TEST_CASE("it learns as the same with real numbers does") {
  const RegressionSize size{2, 6, 5};
  Placed<Regression> learned(size);
  NaiveRegression naive(size);
  Random random(4);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t table = random.below(size.tables);
    std::vector<std::uint32_t> inputs;
    for (std::uint32_t n = 0; n < size.inputs; ++n) {
      if (random.chance(30)) inputs.push_back(n);
    }
    const std::vector<double> p = ask_learned(learned, table, inputs, size.experts);
    std::int32_t error[5];
    for (std::uint32_t e = 0; e < size.experts; ++e) {
      const double expected = naive.ask(table, inputs, e);
      worst = std::max(worst, std::abs(p[e] - expected));
      // The outcome depends on one input, and on chance.
      const bool right = random.chance(!inputs.empty() && inputs[0] == e ? 80 : 10);
      error[e] = (right ? Regression::one : 0) - static_cast<std::int32_t>(p[e] * Regression::one);
      naive.learn(table, inputs, e, right ? 1 : 0);
    }
    learned->learn(table, error);
    REQUIRE(learned->check() == nullptr);
  }
  CHECK(worst < 0.02);
}

TEST_CASE("what it says becomes what happens") {
  const RegressionSize size{1, 4, 4};
  Placed<Regression> learned(size);
  Random random(9);
  for (int i = 0; i < 4000; ++i) {
    const std::uint32_t input = random.below(4);
    const std::vector<double> p = ask_learned(learned, 0, {input}, 4);
    std::int32_t error[4];
    for (std::uint32_t e = 0; e < 4; ++e) {
      const bool happens = random.chance(e == input ? 70 : 20);
      error[e] = (happens ? Regression::one : 0) - static_cast<std::int32_t>(p[e] * Regression::one);
    }
    learned->learn(0, error);
  }
  for (std::uint32_t input = 0; input < 4; ++input) {
    for (std::uint32_t e = 0; e < 4; ++e) {
      CHECK(ask_learned(learned, 0, {input}, 4)[e] == doctest::Approx(e == input ? 0.7 : 0.2).epsilon(0.35));
    }
  }
}

TEST_CASE("weights stay within eight, whatever is taught") {
  Placed<Regression> learned(RegressionSize{1, 2, 2});
  learned->set(0, 0, 0, 8 * Regression::weight_of_1);
  learned->set(0, 1, 0, -8 * Regression::weight_of_1);
  learned->clear();
  learned->add(0);
  learned->add(1);
  for (int i = 0; i < 1000; ++i) {
    std::int32_t error[] = {Regression::one, -Regression::one};
    learned->learn(0, error);
  }
  CHECK(learned->check() == nullptr);
  CHECK(ask_learned(learned, 0, {0, 1}, 2) == std::vector<double>{1, 0});
}
