#include "ferry/detail/next_uses.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Experts = std::vector<std::uint16_t>;

struct UsesSize {
  std::uint32_t layers, experts;
};
/// detail::NextUses is no policy; it is placed like one.
struct Uses : detail::NextUses {
  void reserve(Carver& carve, const UsesSize& s) { detail::NextUses::reserve(carve, s.layers, s.experts); }
};

/// v of each expert of a layer, behind rows [rows, k] of a step that has begun.
std::vector<double> choose(Placed<Uses>& uses, std::uint32_t layer, const std::vector<Experts>& rows,
                           std::uint32_t experts, const std::vector<std::uint32_t>& which = {}) {
  std::vector<Route> routes;
  for (const Experts& row : rows) {
    for (const std::uint16_t e : row) routes.push_back({e, 1.0F, no_expert});
  }
  uses->note(layer, {routes.data(), static_cast<std::uint32_t>(routes.size())},
             {which.data(), static_cast<std::uint32_t>(which.size())});
  const std::int32_t* v = uses->ask(layer);
  std::vector<double> all;
  for (std::uint32_t e = 0; e < experts; ++e) all.push_back(v[e] / static_cast<double>(Uses::one));
  uses->learn(layer);
  REQUIRE(broken(*uses) == "");
  return all;
}
/// A step of one layer with 8 experts.
std::vector<double> step(Placed<Uses>& uses, const std::vector<Experts>& rows) {
  uses->begin_step(StepOf(Phase::decode, static_cast<std::uint32_t>(rows.size())));
  return choose(uses, 0, rows, 8);
}

}  // namespace

TEST_CASE("before anything is learned, what was used last is used next") {
  Placed<Uses> uses(UsesSize{1, 8});
  step(uses, {{2}});
  const std::vector<double> v = step(uses, {{5}});
  // By hand: x = -2 + 1, -2 + 1/2 and -2 in 1/2 + x / 4 + x^2 / 32, and what the second token taught about the first: a tenth
  // of the error of its prediction.
  CHECK(v[5] == doctest::Approx(9.0 / 32).epsilon(0.001));
  CHECK(v[2] == doctest::Approx(0.5 - 1.5 / 4 + 2.25 / 32).epsilon(0.001));
  CHECK(v[0] == doctest::Approx(0.125).epsilon(0.001));
}

TEST_CASE("each sequence of a batch has its own past") {
  // Two sequences count up, one through 0 to 3, the other through 4 to 7. Neither is ever followed by the other's expert.
  Placed<Uses> uses(UsesSize{1, 8});
  std::vector<double> v;
  const auto a = [](int i) { return static_cast<std::uint16_t>(i % 4); };
  const auto b = [](int i) { return static_cast<std::uint16_t>(4 + (i + 2) % 4); };
  for (int i = 0; i < 800; ++i) v = step(uses, {{a(i)}, {b(i)}});
  for (int i = 800; i < 808; ++i) {
    v = step(uses, {{a(i)}, {b(i)}});
    for (std::uint16_t e = 0; e < 8; ++e) {  // 1/2 for what comes next, less for all others
      const bool next = e == a(i + 1) || e == b(i + 1);
      CHECK((v[e] > 0.45) == next);
    }
  }
}

TEST_CASE("the rows of a prompt teach, the last 64 of them") {
  // 4, 5, 6, 7 come in turn: 5 follows 4, then comes 6, then 7, and 4 itself last. What came more than 64 rows before the end
  // is not kept.
  std::vector<Experts> rows;
  for (std::uint16_t i = 0; i < 136; ++i) rows.push_back({static_cast<std::uint16_t>(i % 4)});
  for (std::uint16_t i = 0; i < 64; ++i) rows.push_back({static_cast<std::uint16_t>(4 + i % 4)});
  Placed<Uses> uses(UsesSize{1, 8});
  std::vector<double> v;
  for (int i = 0; i < 40; ++i) {
    uses->begin_step(StepOf(Phase::prefill, 200));
    choose(uses, 0, rows, 8);
  }
  v = step(uses, {{4}});
  CHECK(v[5] > v[6]);
  CHECK(v[6] > v[7]);
  CHECK(v[7] > v[4]);
  for (std::uint16_t e = 0; e < 4; ++e) CHECK(v[e] < 0.01);
}

TEST_CASE("over thousands of steps, against a regression with real numbers") {
  constexpr std::uint32_t layers = 2, experts = 24, k = 2;
  Placed<Uses> uses(UsesSize{layers, experts});
  Random random(5);
  struct Table {
    double b[experts], w[2 * experts][experts];
  };
  std::vector<Table> tables(layers);
  for (Table& t : tables) {
    for (std::uint32_t e = 0; e < experts; ++e) {
      t.b[e] = -2;
      for (auto& row : t.w) row[e] = 0;
    }
    for (std::uint32_t e = 0; e < experts; ++e) {
      t.w[e][e] = 1;
      t.w[experts + e][e] = 0.5;
    }
  }
  const auto says = [&](const Table& t, const Experts& inputs, std::uint32_t e) {
    double x = t.b[e];
    for (const std::uint32_t i : inputs) x += t.w[i][e];
    x = std::max(-4.0, std::min(4.0, x));
    return 0.5 + x / 4 - (x < 0 ? -1 : 1) * x * x / 32;
  };
  // What was chosen, by layer and sequence, the latest last.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Experts>> past;
  double worst = 0, most = 0, off = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::uint32_t rows = 1 + static_cast<std::uint32_t>(i / 1000) % 2;
    uses->begin_step(StepOf(Phase::decode, rows));
    for (std::uint32_t l = 0; l < layers; ++l) {
      std::vector<Experts> step_rows;
      std::vector<double> not_used(experts, 1.0);
      for (std::uint32_t r = 0; r < rows; ++r) {
        const std::vector<Experts>& tokens = past[{l, r}];
        Experts now;
        while (now.size() < k) {  // mostly one or two places further in a ring than the token before
          const std::uint32_t from = tokens.empty() ? 0 : tokens.back()[now.size()];
          const auto e = static_cast<std::uint16_t>(random.chance(80) ? (from + random.between(1, 2)) % experts
                                                                      : random.below(experts));
          if (std::find(now.begin(), now.end(), e) == now.end()) now.push_back(e);
        }
        step_rows.push_back(now);
      }
      // The inputs for a row: what it chose and what the token before it chose, for this token or an earlier one.
      const auto inputs_of = [&](std::uint32_t r, std::size_t back) {
        const std::vector<Experts>& tokens = past[{l, r}];
        Experts in = back == 0 ? step_rows[r] : tokens[tokens.size() - back];
        if (tokens.size() > back) {
          for (const std::uint16_t e : tokens[tokens.size() - back - 1])
            in.push_back(static_cast<std::uint16_t>(experts + e));
        }
        return in;
      };
      Table& t = tables[l];
      for (std::uint32_t e = 0; e < experts; ++e) {
        for (std::uint32_t r = 0; r < rows; ++r) not_used[e] *= 1 - says(t, inputs_of(r, 0), e);
        for (std::uint32_t r = 0; r < rows; ++r) {
          if (past[{l, r}].empty()) continue;
          const bool here = std::find(step_rows[r].begin(), step_rows[r].end(), e) != step_rows[r].end();
          const Experts before = inputs_of(r, 1);
          const double right = (here ? 0.5 : 0.0) + says(t, inputs_of(r, 0), e) / 2;
          const double more = 0.1 * (right - says(t, before, e));
          t.b[e] += more;
          for (const std::uint32_t in : before) t.w[in][e] += more;
        }
      }
      for (std::uint32_t r = 0; r < rows; ++r) {
        std::vector<Experts>& tokens = past[{l, r}];
        tokens.push_back(step_rows[r]);
        if (tokens.size() > 2) tokens.erase(tokens.begin());
      }
      const std::vector<double> v = choose(uses, l, step_rows, experts);
      for (std::uint32_t e = 0; e < experts; ++e) {
        worst = std::max(worst, std::abs(v[e] - (1 - not_used[e])));
        most = std::max(most, v[e]);
        off += std::abs(v[e] - (1 - not_used[e])) / (4000.0 * layers * experts);
      }
    }
  }
  CHECK(worst < 0.05);  // weights are rounded to 2^-11 at each of thousands of steps
  CHECK(off < 0.005);
  CHECK(most > 0.6);
}

TEST_CASE("a row that its layer leaves out neither teaches nor is asked") {
  Placed<Uses> uses(UsesSize{1, 8}), twin(UsesSize{1, 8});
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const auto e = static_cast<std::uint16_t>(random.below(8));
    uses->begin_step(StepOf(Phase::decode, 2));
    const std::vector<double> v = choose(uses, 0, {{e}}, 8, {1});  // sequence 1 only
    const std::uint32_t sequence = 1;
    twin->begin_step(Step{Phase::decode, {&sequence, 1}});
    REQUIRE(v == choose(twin, 0, {{e}}, 8));
  }
}

TEST_CASE("once all is forgotten a sequence of the same number is a new one") {
  // The twin never forgets, but numbers each sequence anew; the third one does neither.
  Placed<Uses> uses(UsesSize{1, 8}), twin(UsesSize{1, 8}), deaf(UsesSize{1, 8});
  Random random(2);
  int different = 0;
  for (std::uint32_t sequence = 0; sequence < 400; ++sequence) {
    for (std::uint32_t token = 0; token < 3; ++token) {
      const auto e = static_cast<std::uint16_t>(random.chance(80) ? 2 * token + sequence % 2 : random.below(8));
      const std::uint32_t same = 0;
      uses->begin_step(Step{Phase::decode, {&same, 1}});
      twin->begin_step(Step{Phase::decode, {&sequence, 1}});
      deaf->begin_step(Step{Phase::decode, {&same, 1}});
      const std::vector<double> v = choose(uses, 0, {{e}}, 8);
      REQUIRE(v == choose(twin, 0, {{e}}, 8));
      if (v != choose(deaf, 0, {{e}}, 8)) ++different;
    }
    uses->forget();
  }
  CHECK(different > 300);
}
