#include "ferry/predictor/gate_bank.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "support/random.hpp"

using namespace ferry;

TEST_CASE("scores are the softmax of that layer's gate, against a loop") {
  test::Random random(2);
  GateBank bank(3, 5, 7);
  std::vector<GateBank::Matrix> gates;
  for (std::uint32_t l = 0; l < 3; ++l) {
    gates.emplace_back(5, 7);
    for (Eigen::Index i = 0; i < 35; ++i) gates[l].data()[i] = random.unit() - 0.5F;
    bank.set(l, gates[l]);
  }
  for (const Eigen::Index rows : {1, 4}) {
    GateBank::Matrix x(rows, 7);
    for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = random.unit() * 4;
    const Scores s = bank.scores(2, x);
    CHECK(s.layer == 2);
    REQUIRE(s.select.size == static_cast<std::uint32_t>(rows * 5));
    for (Eigen::Index r = 0; r < rows; ++r) {
      double sum = 0, logits[5];
      for (Eigen::Index e = 0; e < 5; ++e) {
        double logit = 0;
        for (Eigen::Index d = 0; d < 7; ++d) logit += static_cast<double>(gates[2](e, d)) * x(r, d);
        logits[e] = std::exp(logit);
        sum += logits[e];
      }
      for (Eigen::Index e = 0; e < 5; ++e) {
        CHECK(s.weight[static_cast<std::uint32_t>(r * 5 + e)] == doctest::Approx(logits[e] / sum).epsilon(1e-5));
      }
    }
  }
}
