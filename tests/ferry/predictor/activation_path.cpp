#include "ferry/predictor/activation_path.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Experts = std::vector<std::uint16_t>;

void observe(Placed<ActivationPath>& p, std::uint16_t layer, const Experts& taken) {
  std::vector<Route> routes;
  for (const std::uint16_t e : taken) routes.push_back({e, 1.0F});
  p->observe(layer, routes, {});
}

/// One step whose layers use these experts, from layer 0 on.
void step(Placed<ActivationPath>& p, const std::vector<Experts>& layers) {
  p->begin_step(StepOf(Phase::decode, 1));
  for (std::size_t l = 0; l < layers.size(); ++l) observe(p, static_cast<std::uint16_t>(l), layers[l]);
}

std::vector<Request> predict(Placed<ActivationPath>& p, std::uint16_t layer) {
  std::vector<Request> memory(16);
  Out<Request> out{memory.data(), 16, 0};
  p->predict(Phase::decode, {layer, {}, {}}, out);
  memory.resize(out.size);
  return memory;
}

}  // namespace

TEST_CASE("the experts that followed most often are named, those never seen to follow are not") {
  static_assert(part::rows_of<ActivationPath>(Phase::decode) == RowSource::none);
  Placed<ActivationPath> p(Shape{3, 6, 2, 1});
  step(p, {{0, 1}, {4, 5}});  // layer 0 to 1: 0>4 0>5 1>4 1>5
  step(p, {{0, 2}, {4, 3}});  // 0>4 0>3 2>4 2>3
  step(p, {{0, 1}});
  // Expert 4: 2 from 0, 1 from 1. Expert 5: 1 and 1. Expert 3: 1 from 0.
  const auto r = predict(p, 1);
  CHECK(ids(r) == std::vector{4, 5});
  CHECK(r[0].want.id.layer == 1);
  CHECK(r[0].confidence == 3.0F);
  CHECK(r[1].confidence == 2.0F);
  CHECK(r[0].rows == 1);
  step(p, {{2, 5}});  // 5 was never seen in layer 0; 2 was followed by 4 and 3: a tie, the lower index first
  CHECK(ids(predict(p, 1)) == std::vector{3, 4});
  step(p, {{5, 1}});
  CHECK(ids(predict(p, 1)) == std::vector{4, 5});
  step(p, {{5, 3}});
  CHECK(predict(p, 1).empty());
}

TEST_CASE("of experts that followed equally often, those of lower index are among the k best") {
  Placed<ActivationPath> p(Shape{2, 4, 2, 1});
  step(p, {{3, no_expert}, {0, 1}});
  step(p, {{3, no_expert}, {2, no_expert}});
  step(p, {{3, no_expert}, {2, no_expert}});
  step(p, {{3, no_expert}});
  CHECK(ids(predict(p, 1)) == std::vector{2, 0});
}

TEST_CASE("only the layer after the one observed last, in the same step, is predicted") {
  Placed<ActivationPath> p(Shape{3, 4, 1, 1});
  CHECK(predict(p, 0).empty());
  CHECK(predict(p, 1).empty());
  step(p, {{0}, {1}, {2}});
  CHECK(predict(p, 0).empty());  // the next step's rows are other tokens
  step(p, {{0}});
  CHECK(ids(predict(p, 1)) == std::vector{1});
  CHECK(predict(p, 2).empty());
  p->begin_step(StepOf(Phase::decode, 1));
  CHECK(predict(p, 1).empty());
  observe(p, 0, {3});
  p->begin_step(StepOf(Phase::decode, 1));  // the last step was abandoned, so 3 and 1 are no path
  observe(p, 1, {1});
  step(p, {{3}});
  CHECK(predict(p, 1).empty());
}

TEST_CASE("a batch: paths go from a row to itself, each row names its own, most often followed over all rows first") {
  Placed<ActivationPath> p(Shape{2, 8, 2, 3});
  step(p, {{0, 1, 2, 3}, {4, 5, 6, 7}});  // two rows: 0 1 > 4 5, 2 3 > 6 7
  step(p, {{2, 3}, {6, 7}});              // one row
  step(p, {{0, 1, 2, 3, 2, 0}});
  // Rows {0 1}: 4 and 5 with 2 each. {2 3}: 6 and 7 with 4 each. {2 0}: 6 and 7 with 2, 4 and 5 with 1.
  const auto r = predict(p, 1);
  CHECK(ids(r) == std::vector{6, 7, 4, 5});
  CHECK(r[0].rows == 2);
  CHECK(r[0].confidence == 6.0F);
  CHECK(r[2].rows == 1);
  CHECK(r[2].confidence == 3.0F);  // also from the row that did not name it
}

TEST_CASE("counts are of the gate's choice, not of its substitute, and skipped experts are no part of a path") {
  Placed<ActivationPath> p(Shape{2, 6, 2, 1});
  p->begin_step(StepOf(Phase::decode, 1));
  const Route first[] = {{1, 1.0F, 0}, {no_expert, 0.0F}};  // the gate chose 0
  const Route second[] = {{2, 1.0F, 3}, {4, 1.0F}};         // the gate chose 3 and 4
  p->observe(0, {first, 2}, {});
  p->observe(1, {second, 2}, {});
  step(p, {{0, 5}});
  CHECK(ids(predict(p, 1)) == std::vector{3, 4});
  step(p, {{1, 5}});
  CHECK(predict(p, 1).empty());
}

TEST_CASE("sequence-level counts begin anew at the first step after a sequence has ended, model-level counts stay") {
  for (const auto level : {ActivationPath::Level::model, ActivationPath::Level::sequence}) {
    ActivationPath parameters;
    parameters.level = level;
    Placed<ActivationPath> p(Shape{2, 4, 1, 1}, parameters);
    step(p, {{0}, {1}});
    step(p, {{0}});
    p->end_sequence(0);
    CHECK(predict(p, 1).size() == 1);  // still this step
    step(p, {{0}});
    CHECK(predict(p, 1).size() == (level == ActivationPath::Level::model ? 1 : 0));
    observe(p, 1, {2});
    step(p, {{0}});
    // Counted again, and kept: 1 and 2 once each, or 2 alone.
    CHECK(ids(predict(p, 1)) == std::vector{level == ActivationPath::Level::model ? 1 : 2});
  }
}

TEST_CASE("activation paths against naive counting") {
  constexpr std::uint16_t layers = 4, experts = 9, k = 3;
  Placed<ActivationPath> p(Shape{layers, experts, k, 4});
  std::map<std::tuple<int, int, int>, int> counts;  // layer, from, to
  Random random(11);
  for (int i = 0; i < 300; ++i) {
    const std::uint32_t rows = random.between(1, 4);
    p->begin_step(StepOf(Phase::decode, rows));
    std::vector<Experts> before;
    for (std::uint16_t l = 0; l < layers; ++l) {
      if (l > 0) {
        std::map<int, std::pair<int, int>> named;  // expert: total score, rows
        std::map<int, int> total;
        for (const Experts& row : before) {
          std::vector<std::pair<int, int>> best;  // negative score, expert
          for (int e = 0; e < experts; ++e) {
            int score = 0;
            for (const int from : row) score += counts[{l, from, e}];
            total[e] += score;
            if (score > 0) best.emplace_back(-score, e);
          }
          std::sort(best.begin(), best.end());
          for (std::size_t n = 0; n < best.size() && n < k; ++n) ++named[best[n].second].second;
        }
        std::vector<std::pair<int, int>> order;
        for (auto& [e, found] : named) order.emplace_back(-total[e], e);
        std::sort(order.begin(), order.end());
        const auto r = predict(p, l);
        REQUIRE(r.size() == order.size());
        for (std::size_t n = 0; n < order.size(); ++n) {
          CHECK(r[n].want.id.expert == order[n].second);
          CHECK(r[n].confidence == static_cast<float>(-order[n].first));
          CHECK(static_cast<int>(r[n].rows) == named[order[n].second].second);
        }
      }
      std::vector<Experts> now;
      Experts all;
      for (std::uint32_t row = 0; row < rows; ++row) {
        Experts chosen;
        while (chosen.size() < k) {
          const std::uint32_t a = random.below(experts);
          const std::uint32_t b = random.below(experts);
          const auto e = static_cast<std::uint16_t>(a * b / experts);  // some are popular
          if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
        }
        now.push_back(chosen);
        all.insert(all.end(), chosen.begin(), chosen.end());
      }
      observe(p, l, all);
      for (std::uint32_t row = 0; row < rows && l > 0; ++row) {
        for (const int from : before[row]) {
          for (const int to : now[row]) ++counts[{l, from, to}];
        }
      }
      before = now;
    }
  }
}

TEST_CASE("rows that a layer leaves out do not lend their path to others") {
  Placed<ActivationPath> p(Shape{2, 6, 1, 3});
  auto layer = [&](std::uint16_t l, const Experts& taken, const std::vector<std::uint32_t>& rows) {
    std::vector<Route> routes;
    for (const std::uint16_t e : taken) routes.push_back({e, 1.0F});
    p->observe(l, routes, rows);
  };
  p->begin_step(StepOf(Phase::decode, 3));
  layer(0, {0, 1, 2}, {});
  layer(1, {5}, {2});  // row 2 took 2, then 5
  for (const auto& [from, to] : std::vector<std::pair<std::uint16_t, std::vector<int>>>{{0, {}}, {1, {}}, {2, {5}}}) {
    p->begin_step(StepOf(Phase::decode, 1));
    layer(0, {from}, {});
    CHECK(ids(predict(p, 1)) == to);
  }
}

TEST_CASE("a row that the layer before left out begins no path") {
  Placed<ActivationPath> p(Shape{2, 6, 1, 3});
  const std::uint32_t before[] = {0, 2}, after[] = {1, 2};
  const Route from[] = {{0, 1.0F}, {2, 1.0F}}, to[] = {{4, 1.0F}, {5, 1.0F}};
  p->begin_step(StepOf(Phase::decode, 3));
  p->observe(0, from, before);
  p->observe(1, to, after);  // row 1 took 4 from nowhere, row 2 took 5 from 2
  step(p, {{2}});
  CHECK(ids(predict(p, 1)) == std::vector{5});
  step(p, {{0}});
  CHECK(predict(p, 1).empty());
}
