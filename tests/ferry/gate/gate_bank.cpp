#include "ferry/gate/gate_bank.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "support/gates.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("gates are 0 until they are set") {
  { const Matrix garbage = Matrix::Constant(3 * 5, 7, 1e9F); }  // whose memory the bank may get
  const GateBank bank(3, 5, 7);
  for (std::uint32_t l = 0; l < 3; ++l) CHECK(bank.of(l).isZero(0));
}

TEST_CASE("scores are the softmax of that layer's gate, against a loop") {
  test::Random random(2);
  GateBank bank(3, 5, 7);
  std::vector<Matrix> gates;
  for (std::uint32_t l = 0; l < 3; ++l) {
    gates.push_back(random_matrix(random, 5, 7));
    bank.set(l, gates[l]);
  }
  for (const Eigen::Index rows : {1, 4}) {
    const Matrix x = 4 * random_matrix(random, rows, 7);
    auto check = [&](const Scores& s, std::uint16_t layer) {
      CHECK(s.layer == layer);
      REQUIRE(s.select.size == static_cast<std::uint32_t>(rows * 5));
      REQUIRE(s.weight.size == static_cast<std::uint32_t>(rows * 5));
      for (Eigen::Index r = 0; r < rows; ++r) {
        double sum = 0, logits[5];
        for (Eigen::Index e = 0; e < 5; ++e) {
          double logit = 0;
          for (Eigen::Index d = 0; d < 7; ++d) logit += static_cast<double>(gates[layer](e, d)) * x(r, d);
          logits[e] = std::exp(logit);
          sum += logits[e];
        }
        for (Eigen::Index e = 0; e < 5; ++e) {
          CHECK(s.weight[static_cast<std::uint32_t>(r * 5 + e)] == doctest::Approx(logits[e] / sum).epsilon(1e-5));
        }
      }
    };
    check(bank.scores(2, x), 2);
    const View<const Scores> both = bank.scores(1, 2, x);
    REQUIRE(both.size == 2);
    check(both[0], 1);
    check(both[1], 2);
  }
}

TEST_CASE("the stacked product gives what single products give, each layer's rows adjacent") {
  test::Random random(7);
  for (const std::uint32_t experts : {5U, 8U, 60U}) {
    for (const std::uint32_t hidden : {7U, 32U, 64U}) {
      GateBank bank = random_bank(random, 5, experts, hidden);
      CHECK(bank.layers() == 5);
      CHECK(bank.experts() == experts);
      for (const Eigen::Index rows : {1, 2, 7, 8, 30}) {
        const Matrix x = random_matrix(random, rows, hidden);
        for (const std::uint32_t count : {1U, 2U, 4U}) {
          GateBank::Result result;
          const View<const Scores> stacked = bank.scores(1, count, x, result);
          REQUIRE(stacked.size == count);
          for (std::uint32_t p = 0; p < count; ++p) {
            const Scores single = bank.scores(static_cast<std::uint16_t>(1 + p), x);
            CHECK(stacked[p].layer == 1 + p);
            REQUIRE(stacked[p].select.size == rows * experts);
            REQUIRE(single.select.size == rows * experts);
            for (std::uint32_t i = 0; i < single.select.size; ++i) {
              const float a = stacked[p].select[i], b = single.select[i];
              CAPTURE(i);
              CHECK(std::abs(a - b) <= 1e-6F * b);
              if (rows < 8 && hidden % 16 == 0) CHECK(a == b);
              CHECK(stacked[p].weight[i] == a);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("learned gates predict from the layer before, and the layers' own what lies farther ahead") {
  test::Random random(5);
  for (const std::uint32_t depth : {1U, 2U, 3U}) {
    for (const Eigen::Index rows : {1, 3, 9}) {
      GateBank bank = random_bank(random, 5, 6, 8), expected(1, 6, 8);
      const Matrix x = random_matrix(random, rows, 8);
      bank.expect_learned(depth);
      Matrix learned[5][4];
      for (std::uint32_t layer = 1; layer < 5; ++layer) {
        for (std::uint32_t d = 1; d <= std::min(depth, layer); ++d) {
          learned[layer][d] = random_matrix(random, 6, 8);
          bank.set_learned(layer, d, learned[layer][d]);
        }
      }
      for (std::uint16_t first = 0; first < 5; ++first) {
        const View<const Scores> all = bank.scores(first, 5U - first, x);
        for (std::uint32_t i = 0; i < all.size; ++i) {
          CAPTURE(first);
          CAPTURE(i);
          CHECK(all[i].layer == first + i);
          expected.set(0, first > 0 && i < depth ? learned[first + i][i + 1] : bank.of(first + i));
          const Scores right = expected.scores(0, x);
          REQUIRE(all[i].select.size == right.select.size);
          for (std::uint32_t e = 0; e < right.select.size; ++e) {
            CHECK(all[i].select[e] == doctest::Approx(right.select[e]).epsilon(1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("large logits do not overflow") {
  GateBank bank(1, 2, 1);
  bank.set(0, (Matrix(2, 1) << 1, -1).finished());
  const Scores s = bank.scores(0, Matrix::Constant(1, 1, 300));
  CHECK(s.select[0] == 1.0F);
  CHECK(s.select[1] == 0.0F);
}

TEST_CASE("layers that the bank does not have are refused") {
  test::Random random(1);
  GateBank bank = random_bank(random, 3, 4, 4);
  const Matrix x = random_matrix(random, 1, 4);
  CHECK_THROWS_WITH_AS(bank.scores(2, 2, x),
                       "GateBank: scores of 2 layers from layer 2 on were asked for, there are 3 layers",
                       std::out_of_range);
  CHECK_THROWS_AS(bank.scores(3, x), std::out_of_range);
  CHECK_THROWS_AS(bank.scores(0, 4, x), std::out_of_range);
  CHECK(bank.scores(0, 3, x).size == 3);
  CHECK(bank.scores(3, 0, x).size == 0);
}
