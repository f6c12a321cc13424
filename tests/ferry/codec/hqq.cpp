#include "ferry/codec/hqq.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/random.hpp"

using namespace ferry;

namespace {

double error(const std::vector<float>& weights, std::uint32_t bits, const PackedGroup& group) {
  double sum = 0;
  for (const float w : weights) sum += std::abs(double{w} - double{group.weight(group.code(w, bits))});
  return sum;
}

View<const float> view(const std::vector<float>& weights) {
  return {weights.data(), static_cast<std::uint32_t>(weights.size())};
}

}  // namespace

TEST_CASE("HQQ: a group worked by hand, below the shrinkage") {
  // Scale 4, codes 0, 1, 1, 1, 3, errors 0, 1, 1, 1, 0, in units of 1/64. The least squares minimum is their mean, 0.6:
  // errors -0.6, 0.4, 0.4, 0.4, -0.6, together 2.4 instead of 3, the same codes, hence the same minimum: the end.
  const std::vector<float> weights{0, 5.0F / 64, 5.0F / 64, 5.0F / 64, 12.0F / 64};
  const PackedGroup g = Hqq{}(view(weights), 2);
  CHECK(g.scale == 4.0F / 64);
  CHECK(g.minimum == doctest::Approx(0.6 / 64).epsilon(1e-6));
  CHECK(error(weights, 2, g) == doctest::Approx(2.4 / 64).epsilon(1e-6));
}

TEST_CASE("HQQ: a group worked by hand, where errors are shrunk") {
  // As above, 64 times as large. shrink(1) = 1 - 1/10 = 0.9: the minimum is the mean of 0, 0.1, 0.1, 0.1, 0.
  // Then the errors are -0.06, 0.94, 0.94, 0.94, -0.06: shrink(0.94) = 0.94 - 0.94^-0.3 / 10.1 = 0.8391351, and 0.06,
  // below (1/10.1)^(1/1.3) = 0.169, is shrunk to 0: the minimum is 3/5 of 1 - 0.8391351.
  const std::vector<float> weights{0, 5, 5, 5, 12};
  Hqq hqq;
  hqq.iterations = 1;
  CHECK(hqq(view(weights), 2).minimum == doctest::Approx(0.06).epsilon(1e-6));
  hqq.iterations = 2;
  CHECK(hqq(view(weights), 2).minimum == doctest::Approx(0.6 * 0.1608649).epsilon(1e-6));
  hqq.iterations = 0;
  CHECK(hqq(view(weights), 2).minimum == 0);
}

TEST_CASE("HQQ is never worse than round-to-nearest in mean absolute error, and usually better") {
  test::Random random(7);
  for (const bool heavy_tailed : {false, true}) {
    for (const std::uint32_t bits : {8U, 4U, 2U}) {
      CAPTURE(heavy_tailed);
      CAPTURE(bits);
      double hqq = 0, nearest = 0;
      for (int n = 0; n < 300; ++n) {
        std::vector<float> weights(random.between(1, 128));
        const float magnitude = std::ldexp(1.0F, static_cast<int>(random.below(20)) - 10);
        for (float& w : weights) {
          const float u = random.unit() - 0.5F;
          w = magnitude * (heavy_tailed ? u / (0.51F - std::abs(u)) : u);
        }
        const double ours = error(weights, bits, Hqq{}(view(weights), bits));
        const double theirs = error(weights, bits, RoundToNearest{}(view(weights), bits));
        REQUIRE(ours <= theirs);
        hqq += ours / magnitude;
        nearest += theirs / magnitude;
      }
      CHECK(hqq < 0.99 * nearest);
    }
  }
}

TEST_CASE("HQQ: equal weights are exact, the largest and smallest floats are no trouble") {
  constexpr float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    for (const float w : {0.1F, -3.7F, 0.0F, most, -most, least}) {
      const std::vector<float> weights(64, w);
      CHECK(error(weights, bits, Hqq{}(view(weights), bits)) == 0);
    }
    for (const std::vector<float>& w :
         {std::vector<float>{-most, most, 0}, {-most, most, most / 2, most / 3}, {0, least, 5 * least, 6 * least}}) {
      CHECK(error(w, bits, Hqq{}(view(w), bits)) <= error(w, bits, RoundToNearest{}(view(w), bits)));
    }
  }
}

TEST_CASE("HQQ: impossible parameters are refused") {
  CHECK_NOTHROW(Hqq{}.validate());
  for (const Hqq& bad : {Hqq{0}, Hqq{1.5}, Hqq{0.7, 0}, Hqq{0.7, 10, 0.9}, Hqq{std::nan("")}}) {
    CHECK_THROWS_AS(bad.validate(), ConfigError);
  }
  CHECK_THROWS_WITH_AS(
      Hqq{2}.validate(),
      "Hqq: p is 2.000000, beta 10.000000, kappa 1.010000, expected p above 0 and at most 1, beta above "
      "0, kappa 1 or more",
      ConfigError);
}
