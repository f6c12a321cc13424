// Gate rules on logits whose scores are worked by hand.
#include "ferry/gate/gate_rule.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ferry/router/top_k.hpp"

namespace {

using namespace ferry;

struct Scored {
  std::vector<float> select, weight;
};

Scored score(const GateRule& rule, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  Scored s{std::vector<float>(logits.size()), std::vector<float>(logits.size())};
  rule.score(logits, bias.empty() ? nullptr : bias.data(), s.select.data(), s.weight.data());
  return s;
}

/// The k chosen, best first, with their weights.
std::vector<Route> chosen(const Scored& s, std::uint16_t k, Renormalise renormalise, float scale = 1) {
  Shape shape;
  shape.experts = static_cast<std::uint16_t>(s.select.size());
  shape.top_k = k;
  shape.renormalise = renormalise;
  shape.scale = scale;
  TopK router;
  Carver none;
  router.reserve(none, shape);
  std::vector<Route> routes(k);
  Out<Route> out{routes.data(), k, 0};
  router.route(Phase::decode, {0, s.select, s.weight}, {}, out);
  return routes;
}

const float lowest = -std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("softmax: each its share, and top-k before the softmax is the same divided by its sum") {
  const float two = std::log(2.0F), three = std::log(3.0F);
  const Scored s = score({}, {0, three, two, two});  // 1, 3, 2 and 2 eighths
  CHECK(s.weight[0] == doctest::Approx(1.0 / 8));
  CHECK(s.weight[1] == doctest::Approx(3.0 / 8));
  CHECK(s.select == s.weight);
  const std::vector<Route> r = chosen(s, 2, Renormalise::yes, 2.5F);
  CHECK(r[0].expert == 1);
  CHECK(r[1].expert == 2);                             // the tie goes to the lower index
  CHECK(r[0].weight == doctest::Approx(2.5 * 3 / 5));  // e^3' / (e^3' + e^2'), times the model's factor
  CHECK(r[1].weight == doctest::Approx(2.5 * 2 / 5));
}

TEST_CASE("one array for both, in place, where they are not separate") {
  std::vector<float> row{0, std::log(3.0F)};
  const GateRule softmax, sigmoid{.gating = Gating::sigmoid};
  CHECK_FALSE(softmax.separate(false));
  softmax.score(row, nullptr, row.data(), row.data());
  CHECK(row[1] == doctest::Approx(0.75));
  row = {0, std::log(3.0F)};
  CHECK_FALSE(sigmoid.separate(false));
  CHECK(sigmoid.separate(true));
  sigmoid.score(row, nullptr, row.data(), row.data());
  CHECK(row[0] == doctest::Approx(0.5));
  CHECK(row[1] == doctest::Approx(0.75));
}

TEST_CASE("sigmoid with a choice bias: the bias chooses and does not weigh") {
  const float three = std::log(3.0F);
  const Scored s = score({.gating = Gating::sigmoid}, {0, three, -three}, {0.3F, 0, 0.6F});
  CHECK(s.weight[0] == doctest::Approx(0.5));
  CHECK(s.weight[1] == doctest::Approx(0.75));
  CHECK(s.weight[2] == doctest::Approx(0.25));
  CHECK(s.select[0] == doctest::Approx(0.8));
  CHECK(s.select[2] == doctest::Approx(0.85));
  const std::vector<Route> r = chosen(s, 2, Renormalise::yes);
  CHECK(r[0].expert == 2);
  CHECK(r[1].expert == 0);
  CHECK(r[0].weight == doctest::Approx(0.25 / 0.75));
  CHECK(r[1].weight == doctest::Approx(0.5 / 0.75));
}

TEST_CASE("chosen by logits, where sigmoids of two are one: weights stay sigmoids") {
  const GateRule rule{.gating = Gating::sigmoid, .by_logit = true};
  CHECK(rule.separate(false));
  const Scored s = score(rule, {20, 40, -1, 40.001F, 0, -2, 1e-6F});
  CHECK(s.weight[0] == s.weight[1]);
  CHECK(s.weight[4] == 0.5F);
  CHECK(s.weight[2] == doctest::Approx(1 / (1 + std::exp(1.0))));
  const std::vector<Route> r = chosen(s, 7, Renormalise::no);
  const std::uint16_t order[] = {3, 1, 0, 6, 4, 2, 5};
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(r[i].expert == order[i]);
    CHECK(s.select[i] > 0.0F);
    CHECK(r[i].weight == s.weight[order[i]]);
  }
}

TEST_CASE("a second expert is chosen by its logit, too, where a softmax or a sigmoid has nothing left for it") {
  for (const GateRule& rule : {GateRule{.gating = Gating::sparse_mixer, .mixer_epsilon = 0.01F},
                               GateRule{.gating = Gating::sigmoid, .by_logit = true}}) {
    const Scored s = score(rule, {-200, -124.86F, 87.19F, -120.43F, 7.5F, 6.5F, -1000});
    const std::vector<Route> r = chosen(s, 7, Renormalise::no);
    const std::uint16_t order[] = {2, 4, 5, 3, 1, 0, 6};
    for (std::size_t i = 0; i < 7; ++i) {
      CHECK(r[i].expert == order[i]);
      CHECK(s.select[i] > 0.0F);
    }
  }
  // The mixer's second expert is weighed among those close to it.
  const Scored s = score({.gating = Gating::sparse_mixer, .mixer_epsilon = 0.01F}, {-24.86F, 87.19F, -20.43F});
  CHECK(s.weight[2] == doctest::Approx(1));
}

TEST_CASE("groups: a row chooses from the best, by their best expert or by their best two") {
  // Sigmoids of 0.9 0.1 | 0.6 0.5 | 0.7 0.3 | 0.2 0.2
  std::vector<float> logits;
  for (const float p : {0.9F, 0.1F, 0.6F, 0.5F, 0.7F, 0.3F, 0.2F, 0.2F}) logits.push_back(std::log(p / (1 - p)));
  GateRule rule{.gating = Gating::sigmoid, .groups = 4, .kept_groups = 2, .group_votes = 1};
  CHECK(rule.separate(false));
  const Scored by_best = score(rule, logits);  // 0.9 and 0.7
  CHECK(by_best.select[0] == doctest::Approx(0.9));
  CHECK(by_best.select[4] == doctest::Approx(0.7));
  CHECK(by_best.select[2] == lowest);
  CHECK(by_best.select[7] == lowest);
  CHECK(by_best.weight[2] == doctest::Approx(0.6));  // weights stay
  rule.group_votes = 2;
  const Scored by_two = score(rule, logits);  // 1.0, 1.1, 1.0, 0.4: the second and, of equal ones, the first
  CHECK(by_two.select[2] == doctest::Approx(0.6));
  CHECK(by_two.select[3] == doctest::Approx(0.5));
  CHECK(by_two.select[6] == lowest);
  CHECK((by_two.select[0] == lowest) != (by_two.select[4] == lowest));
}

TEST_CASE("a sparse mixer weighs the first among all that are near, and the second among those without it") {
  // Logits 2, 1.97, 1, 0.9 with epsilon 0.01: two logits are close if they differ by at most 2% of the larger magnitude.
  const GateRule rule{.gating = Gating::sparse_mixer, .mixer_epsilon = 0.01F};
  CHECK(rule.separate(false));
  const Scored s = score(rule, {1, 2, 1.97F, 0.9F});
  const std::vector<Route> r = chosen(s, 2, Renormalise::no);
  CHECK(r[0].expert == 1);
  CHECK(r[1].expert == 2);
  CHECK(r[0].weight == doctest::Approx(1 / (1 + std::exp(-0.03))));  // 2 and 1.97
  CHECK(r[1].weight == doctest::Approx(1));                          // 1 is 49% away from 1.97
  // With three equal logits the first is one of three, the second one of the two that remain: weights 1/3 and 1/2.
  const Scored tie = score(rule, {1, 1, 1});
  CHECK(chosen(tie, 2, Renormalise::no)[0].weight == doctest::Approx(1.0 / 3));
  CHECK(chosen(tie, 2, Renormalise::no)[1].weight == doctest::Approx(1.0 / 2));
  // Below zero the magnitude counts, too: -1 and -1.01 are close, -1 and -1.5 are not.
  const Scored negative = score(rule, {-1.5F, -1, -1.01F});
  CHECK(chosen(negative, 2, Renormalise::no)[0].weight == doctest::Approx(1 / (1 + std::exp(-0.01))));
}
