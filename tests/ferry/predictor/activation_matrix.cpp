#include "ferry/predictor/activation_matrix.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Experts = std::vector<std::uint16_t>;

void observe(Placed<ActivationMatrix>& p, std::uint16_t layer, const Experts& taken) {
  std::vector<Route> routes;
  for (const std::uint16_t e : taken) routes.push_back({e, 1.0F});
  p->observe(layer, routes, {});
}

/// A sequence whose layers use these experts, from layer 0 on.
void sequence(Placed<ActivationMatrix>& p, const std::vector<Experts>& layers) {
  for (std::size_t l = 0; l < layers.size(); ++l) observe(p, static_cast<std::uint16_t>(l), layers[l]);
  p->end_sequence(0);
}

std::vector<Request> predict(Placed<ActivationMatrix>& p, std::uint16_t layer) {
  std::vector<Request> memory(16);
  Out<Request> out{memory.data(), 16, 0};
  p->predict(Phase::decode, {layer, {}, {}}, out);
  memory.resize(out.size);
  return memory;
}

ActivationMatrix keeping(std::uint32_t history) {
  ActivationMatrix p;
  p.history = history;
  return p;
}

}  // namespace

TEST_CASE("the past sequence most like the present one predicts, by activation ratio") {
  static_assert(part::rows_of<ActivationMatrix>(Phase::decode) == RowSource::none);
  Placed<ActivationMatrix> p(Shape{2, 6, 2, 4});
  sequence(p, {{0, 1, 0, 1}, {2, 3, 2, 5, 2, 3, 2, 5}});
  sequence(p, {{4, 5}, {0, 1}});
  observe(p, 0, {0, 1});
  const auto r = predict(p, 1);
  CHECK(ids(r) == std::vector{2, 3, 5});
  CHECK(r[0].want.id.layer == 1);
  CHECK(r[0].confidence == .5F);  // 4 of 8
  CHECK(r[1].confidence == .25F);
  CHECK(r[2].rows == 1);
  p->end_sequence(0);
  observe(p, 0, {5, 2});  // only the second has anything in common
  CHECK(ids(predict(p, 1)) == std::vector{0, 1});
}

TEST_CASE("a cosine compares directions: a longer past sequence is not nearer for its length") {
  Placed<ActivationMatrix> p(Shape{2, 4, 1, 8});
  sequence(p, {{0, 0, 0, 1, 1, 1, 1, 1}, {2}});  // (3, 5): with (1, 0) dot 3, cosine 3 / sqrt 34 = .51
  sequence(p, {{0, 1}, {3}});                    // (1, 1): dot 1, cosine .71
  observe(p, 0, {0});
  CHECK(ids(predict(p, 1)) == std::vector{3});
}

TEST_CASE("only the layers seen so far count for the norm of a past matrix") {
  Placed<ActivationMatrix> p(Shape{2, 4, 1, 8});
  // Over layer 0 the first has cosine 1 and the second .71, over both layers 1 / sqrt 17 = .24 and 1 / sqrt 3 = .58.
  sequence(p, {{0}, {2, 2, 2, 2}});
  sequence(p, {{0, 1}, {3}});
  observe(p, 0, {0});
  CHECK(ids(predict(p, 1)) == std::vector{2});
}

TEST_CASE("equally near ones: the one kept in the lower place") {
  Placed<ActivationMatrix> p(Shape{2, 4, 1, 2}, keeping(2));
  sequence(p, {{0}, {1}});
  sequence(p, {{0, 0}, {2}});
  observe(p, 0, {0});
  CHECK(ids(predict(p, 1)) == std::vector{1});
}

TEST_CASE("without a past matrix that has anything in common the present one predicts what it saw") {
  Placed<ActivationMatrix> p(Shape{2, 6, 2, 1});
  CHECK(predict(p, 0).empty());
  observe(p, 0, {4, 1});
  CHECK(predict(p, 1).empty());  // not seen yet
  CHECK(ids(predict(p, 0)) == std::vector{1, 4});
  observe(p, 1, {3, 2});
  observe(p, 0, {1, 5});
  observe(p, 1, {3, 0});
  CHECK(ids(predict(p, 1)) == std::vector{3, 0, 2});
  CHECK(predict(p, 1)[0].confidence == .5F);
  p->end_sequence(0);
  observe(p, 0, {0, 2});  // in common with the past one: nothing
  CHECK(predict(p, 1).empty());
}

TEST_CASE("the oldest past matrix makes room, and an end without a sequence keeps nothing") {
  Placed<ActivationMatrix> p(Shape{2, 6, 1, 1}, keeping(2));
  sequence(p, {{0}, {3}});
  for (int i = 0; i < 5; ++i) p->end_sequence(1);  // the others of the batch
  sequence(p, {{1}, {4}});
  observe(p, 0, {0});
  CHECK(ids(predict(p, 1)) == std::vector{3});
  p->end_sequence(0);  // takes the place of the first: nothing is known of its layer 1
  observe(p, 0, {0});
  CHECK(predict(p, 1).empty());
  p->end_sequence(0);  // and of the second
  observe(p, 0, {1});
  CHECK(predict(p, 1).empty());
}

TEST_CASE("at most `breadth` experts for each route of the latest layer are named") {
  ActivationMatrix parameters;
  parameters.breadth = 1;
  Placed<ActivationMatrix> p(Shape{2, 6, 1, 6}, parameters);
  sequence(p, {{0}, {5, 4, 3, 2, 1, 5}});
  observe(p, 0, {0});
  CHECK(ids(predict(p, 1)) == std::vector{5});
  observe(p, 0, {0, 0});
  CHECK(ids(predict(p, 1)) == std::vector{5, 1});
  parameters.breadth = 2;
  Placed<ActivationMatrix> q(Shape{2, 6, 1, 6}, parameters);
  sequence(q, {{0}, {5, 4, 3, 2, 1, 5}});
  observe(q, 0, {0});
  CHECK(ids(predict(q, 1)) == std::vector{5, 1});
}

TEST_CASE("activations are the gate's choice, not its substitute, and not what is skipped") {
  Placed<ActivationMatrix> p(Shape{2, 6, 3, 1});
  const Route taken[] = {{1, 1.0F, 0}, {no_expert, 0.0F}, {4, 1.0F}};
  p->observe(1, {taken, 3}, {});
  CHECK(ids(predict(p, 1)) == std::vector{0, 4});
}

TEST_CASE("a count that would pass 255 halves its layer, so that ratios stay, and no other layer") {
  Placed<ActivationMatrix> p(Shape{2, 4, 1, 4});
  observe(p, 1, {2, 2, 3});
  for (int i = 0; i < 255; ++i) observe(p, 0, {0, 1, 0, 2});
  // Counts of 0, 1, 2 after round 127: 254, 127, 127. In round 128 the first 0 makes 255 and the 1 makes 128. The
  // second 0 halves them to 127, 64, 63, and counts: after that round 128, 64, 64. After 63 more, round 191, it is
  // 254, 127, 127 again; after round 192 it is 128, 64, 64, and after the last 63 once more:
  const auto r = predict(p, 0);
  REQUIRE(ids(r) == std::vector{0, 1, 2});
  CHECK(r[0].confidence == 254.0F / (254 + 127 + 127));
  CHECK(r[1].confidence == 127.0F / (254 + 127 + 127));
  observe(p, 1, {2});
  CHECK(predict(p, 1)[0].confidence == .75F);  // 3 of 4, never halved
}

TEST_CASE("nearest past matrix and its ratios against naive cosines in double") {
  constexpr std::uint16_t layers = 3, experts = 7;
  using Matrix = std::vector<int>;
  constexpr std::uint32_t history = 5;
  Placed<ActivationMatrix> p(Shape{layers, experts, 2, 40}, keeping(history));
  std::vector<Matrix> past;
  std::size_t oldest = 0;
  Random random(5);
  int compared = 0;
  for (int s = 0; s < 60; ++s) {
    Matrix present(layers * experts);
    const std::uint32_t steps = random.between(1, 60);
    std::uint16_t seen = 0;
    const std::uint32_t favourite = random.below(experts);
    const std::uint32_t prompt = random.between(40, 600);  // some counts are halved
    for (std::uint32_t step = 0; step < steps; ++step) {
      for (std::uint16_t l = 0; l < layers; ++l) {
        Experts taken;
        const std::uint32_t routes = step == 0 ? prompt : 2;
        for (std::uint32_t i = 0; i < routes; ++i) {
          const bool usual = random.chance(50);
          taken.push_back(static_cast<std::uint16_t>(usual ? (favourite + l) % experts : random.below(experts)));
        }
        observe(p, l, taken);
        for (const std::uint16_t e : taken) {
          int& n = present[l * experts + e];
          if (n == 255) {
            for (std::uint16_t other = 0; other < experts; ++other) present[l * experts + other] /= 2;
          }
          ++n;
        }
        seen = std::max<std::uint16_t>(seen, l + 1U);

        double first = -1, second = -1;
        const Matrix* nearest = nullptr;
        for (const Matrix& m : past) {
          double dot = 0, norm = 0, own = 0;
          for (int cell = 0; cell < seen * experts; ++cell) {
            const auto at = static_cast<std::size_t>(cell);
            dot += double{1} * m[at] * present[at];
            norm += double{1} * m[at] * m[at];
            own += double{1} * present[at] * present[at];
          }
          const double cosine = dot / std::sqrt(norm * own);
          if (cosine > first) {
            second = first;
            first = cosine;
            nearest = &m;
          } else {
            second = std::max(second, cosine);
          }
        }
        if (nearest == nullptr || first - second < 1e-9) continue;
        const auto next = static_cast<std::uint16_t>((l + 1) % layers);
        std::vector<std::pair<int, int>> order;  // negative count, expert
        int sum = 0;
        for (int e = 0; e < experts; ++e) {
          const int n = (*nearest)[static_cast<std::size_t>(next * experts + e)];
          sum += n;
          if (n > 0) order.emplace_back(-n, e);
        }
        std::sort(order.begin(), order.end());
        order.resize(std::min<std::size_t>(order.size(), 2 * routes));
        const auto r = predict(p, next);
        REQUIRE(r.size() == order.size());
        for (std::size_t i = 0; i < r.size(); ++i) {
          CHECK(r[i].want.id.expert == order[i].second);
          CHECK(r[i].confidence == static_cast<float>(-order[i].first) / static_cast<float>(sum));
        }
        ++compared;
      }
    }
    p->end_sequence(0);
    if (past.size() < history) {
      past.push_back(present);
    } else {
      past[oldest] = present;
      oldest = (oldest + 1) % history;
    }
  }
  CHECK(compared > 3000);
}

TEST_CASE("cosines that differ in one cell of many are told apart") {
  // Dot products of some 7e6: squared and multiplied by a norm they take 70 bits.
  constexpr std::uint16_t layers = 6, experts = 64;
  Random random(8);
  for (int i = 0; i < 12; ++i) {
    Placed<ActivationMatrix> p(Shape{layers, experts, 1, 1}, keeping(2));
    std::vector<int> first(layers * experts), present(layers * experts);
    for (int& n : first) n = static_cast<int>(random.below(255));
    for (int& n : present) n = static_cast<int>(random.below(255));
    const std::uint32_t cell = random.below((layers - 1) * experts);
    std::vector<int> second = first;
    second[cell] += random.chance(50) || second[cell] == 0 ? 1 : -1;
    second[layers * experts - 1] = first[layers * experts - 1] = 0;  // tells which is which:
    second[layers * experts - 2] = first[layers * experts - 2] = 0;
    auto take = [&](const std::vector<int>& counts, std::uint16_t mark) {
      for (std::uint16_t l = 0; l < layers; ++l) {
        Experts taken;
        for (std::uint16_t e = 0; e < experts; ++e) {
          taken.insert(taken.end(), static_cast<std::size_t>(counts[static_cast<std::size_t>(l * experts + e)]), e);
        }
        if (l == layers - 1 && mark > 0) taken.push_back(mark);
        observe(p, l, taken);
      }
    };
    take(first, experts - 2);
    p->end_sequence(0);
    take(second, experts - 1);
    p->end_sequence(0);
    present[layers * experts - 1] = present[layers * experts - 2] = 0;
    take(present, 0);
    auto squared_cosine = [&](const std::vector<int>& past) {
      std::uint64_t dot = 0, norm = 1;  // of the mark
      for (std::size_t at = 0; at < past.size(); ++at) {
        dot += static_cast<std::uint64_t>(past[at] * present[at]);
        norm += static_cast<std::uint64_t>(past[at] * past[at]);
      }
      return static_cast<double>(dot) * static_cast<double>(dot) / static_cast<double>(norm);
    };
    const double a = squared_cosine(first), b = squared_cosine(second);
    REQUIRE(std::abs(a - b) > 1e-12 * a);
    Request memory[experts];
    Out<Request> out{memory, experts, 0};
    p->predict(Phase::decode, {layers - 1, {}, {}}, out);
    int mark = 0;
    for (const Request& r : out.view())
      mark = std::max<int>(mark, r.want.id.expert >= experts - 2 ? r.want.id.expert : 0);
    CHECK(mark == (a > b ? experts - 2 : experts - 1));
  }
}

TEST_CASE("past sequences are found again in a model of the largest size") {
  Placed<ActivationMatrix> p(Shape{257, 257, 1, 1}, keeping(2));
  sequence(p, {{0, 1, 2, 3}, {5}});
  sequence(p, {{4}, {256, 6}});
  observe(p, 0, {4});
  CHECK(ids(predict(p, 1)) == std::vector{6, 256});
}

TEST_CASE("a history of none, and a model too large to compare exactly, are refused by ActivationMatrix") {
  CHECK_THROWS_WITH_AS((Placed<ActivationMatrix>(Shape{2, 4, 1, 1}, keeping(0))),
                       "ActivationMatrix: history, breadth and depth are 0, 2 and 1, each must be at least 1",
                       ConfigError);
  CHECK_THROWS_WITH_AS((Placed<ActivationMatrix>(Shape{256, 259, 1, 1})),
                       "ActivationMatrix: the model has 66304 experts, at most 66051 can be compared exactly",
                       ConfigError);
}
