#include "ferry/cache/learned_reuse.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

const std::uint8_t none[64] = {};

/// A decode step of one sequence, or of as many as there are lists.
void step(Placed<LearnedReuse>& policy, const std::vector<std::vector<std::uint16_t>>& rows, std::uint16_t layer = 0,
          bool begins = true) {
  if (begins) policy->begin_step(StepOf(Phase::decode, static_cast<std::uint32_t>(rows.size())));
  std::vector<Route> routes;
  for (const auto& row : rows) {
    for (const std::uint16_t e : row) routes.push_back({e, 1.0F, no_expert});
  }
  policy->chosen(layer, {routes.data(), static_cast<std::uint32_t>(routes.size())}, {});
}

void hold(Placed<LearnedReuse>& policy, const std::vector<std::uint16_t>& experts, std::uint16_t layer = 0) {
  for (std::uint32_t s = 0; s < experts.size(); ++s) policy->replace(s, full(layer, experts[s]), true);
}

}  // namespace

TEST_CASE("before it has learned anything it keeps what was used last") {
  Placed<LearnedReuse> policy(PoolShape{3, 0, 1, 8});
  hold(policy, {0, 1, 2});
  for (const std::uint16_t e : std::vector<std::uint16_t>{2, 0, 1}) step(policy, {{e}});
  step(policy, {{3}});
  CHECK(policy->victim(full(0, 3), {none, 1}) == 2);
  const std::uint8_t third[] = {0, 0, 1};
  CHECK(policy->victim(full(0, 3), {third, 1}) == 0);
  CHECK(policy->victim(full(0, 7), {none, 1}) == no_slot);  // never used
}

TEST_CASE("what follows what is used now is kept, though it was not used last") {
  // 0 comes behind 1, 2 behind 3; pairs by chance.
  Placed<LearnedReuse> policy(PoolShape{2, 0, 1, 8});
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const bool first = random.chance(50);
    step(policy, {{static_cast<std::uint16_t>(first ? 1 : 3)}});
    step(policy, {{static_cast<std::uint16_t>(first ? 0 : 2)}});
  }
  hold(policy, {0, 2});
  step(policy, {{1}});
  CHECK(policy->victim(full(0, 1), {none, 1}) == 1);
  step(policy, {{0}});
  step(policy, {{3}});
  CHECK(policy->victim(full(0, 3), {none, 1}) == 0);
}

TEST_CASE("each sequence of a batch has its own past") {
  // Two sequences count up, one through 0 to 3 and the other through 4 to 7; what is next is never what the other is at.
  Placed<LearnedReuse> policy(PoolShape{8, 0, 1, 8});
  for (std::uint16_t i = 0; i < 800; ++i) {
    step(policy, {{static_cast<std::uint16_t>(i % 4)}, {static_cast<std::uint16_t>(4 + (i + 2) % 4)}});
  }
  hold(policy, {0, 1, 2, 3, 4, 5, 6, 7});
  for (std::uint16_t i = 0; i < 8; ++i) {
    const auto a = static_cast<std::uint16_t>(i % 4), b = static_cast<std::uint16_t>(4 + (i + 2) % 4);
    step(policy, {{a}, {b}});
    // What was used now comes again last; of each sequence what comes next is kept longest.
    std::vector<std::uint8_t> gone(8, 0);
    for (int n = 0; n < 6; ++n) {
      std::uint32_t least = no_slot;
      for (std::uint16_t e = 0; e < 8; ++e) {
        const std::uint32_t slot = policy->victim(full(0, e), {gone.data(), 1});
        if (slot != no_slot) least = slot;
      }
      REQUIRE(least != no_slot);
      gone[least] = 1;
    }
    CHECK(gone[(a + 1U) % 4] == 0);
    CHECK(gone[4 + (b + 1U) % 4] == 0);
  }
}

TEST_CASE("a place of another layer is taken if that ranks below the own layer's least by more than chance") {
  const auto victim = [](int uses_there) {
    LearnedReuse slow;
    slow.half_life = 4096;
    Placed<LearnedReuse> policy(PoolShape{2, 0, 2, 64}, slow);
    policy->replace(0, full(0, 0), true);
    policy->replace(1, full(1, 0), true);
    for (int i = 0; i < 40; ++i) {
      step(policy, {{0}});
      step(policy, {{static_cast<std::uint16_t>(i < uses_there ? 0 : 1)}}, 1, false);
    }
    for (int i = 0; i < 60; ++i) {
      step(policy, {{1}});
      step(policy, {{2}}, 1, false);
    }
    step(policy, {{1}});
    return policy->victim(full(0, 1), {none, 1});
  };
  CHECK(victim(40) == 0);
  CHECK(victim(30) == 0);
  CHECK(victim(2) == 1);
}

TEST_CASE("a prompt makes room in its own layer only, and its rows teach") {
  Placed<LearnedReuse> policy(PoolShape{2, 0, 2, 8});
  policy->replace(0, full(0, 0), true);
  policy->replace(1, full(1, 0), true);
  policy->begin_step(StepOf(Phase::prefill, 200));
  std::vector<Route> routes;
  for (std::uint16_t i = 0; i < 200; ++i) routes.push_back({static_cast<std::uint16_t>(4 + i % 4), 1.0F, no_expert});
  policy->chosen(0, {routes.data(), 200}, {});
  const std::uint8_t first[] = {1, 0};
  CHECK(policy->victim(full(0, 7), {none, 1}) == 0);
  CHECK(policy->victim(full(0, 7), {first, 1}) == no_slot);
  // The rows of the prompt went round, 4, 5, 6, 7: behind a 4 comes 5, then 6, and 4 itself last.
  Placed<LearnedReuse> learned(PoolShape{2, 0, 1, 8});
  hold(learned, {6, 7});
  for (int i = 0; i < 6; ++i) {
    learned->begin_step(StepOf(Phase::prefill, 200));
    learned->chosen(0, {routes.data(), 200}, {});
  }
  step(learned, {{4}});
  CHECK(learned->victim(full(0, 5), {none, 1}) == 1);
  CHECK(learned->victim(full(0, 4), {none, 1}) == no_slot);
}

TEST_CASE("a layer that the step has not reached ranks as if it were of this step") {
  // At a half-life of one step. Until its layer is reached, what was used in each of three steps has a rank of at least
  // 1 + 1/2 + 1/4 for its uses alone, and 3.1 with what may follow; a use now has 1, and 2.1 with that.
  LearnedReuse quick;
  quick.half_life = 1;
  Placed<LearnedReuse> policy(PoolShape{1, 0, 2, 8}, quick);
  policy->replace(0, full(1, 0), true);
  for (std::uint16_t e = 5; e < 8; ++e) {
    step(policy, {{e}});
    step(policy, {{0}}, 1, false);
  }
  step(policy, {{4}});
  CHECK(policy->victim(full(0, 4), {none, 1}) == no_slot);
  // Once that layer is reached, and has not used it again, it has half of that.
  step(policy, {{3}}, 1, false);
  CHECK(policy->victim(full(0, 4), {none, 1}) == 0);
}

TEST_CASE("a prompt counts by the share of its rows that chose an expert") {
  // Eight rows are as much as eight steps, at a half-life of 64. Half of them chose expert 0: four uses, after which six
  // steps with expert 1 are more, and not thirty-two, after which they are less.
  Placed<LearnedReuse> policy(PoolShape{1, 0, 1, 8});
  hold(policy, {0});
  policy->begin_step(StepOf(Phase::prefill, 8));
  std::vector<Route> routes;
  for (const std::uint16_t e : std::vector<std::uint16_t>{0, 2, 0, 3, 0, 4, 0, 5})
    routes.push_back({e, 1.0F, no_expert});
  policy->chosen(0, {routes.data(), 8}, {});
  step(policy, {{1}});
  CHECK(policy->victim(full(0, 6), {none, 1}) == no_slot);
  for (int i = 0; i < 5; ++i) step(policy, {{1}});
  CHECK(policy->victim(full(0, 1), {none, 1}) == 0);
}

TEST_CASE("over thousands of steps, against sums of powers and a regression with real numbers") {
  constexpr std::uint32_t layers = 2, experts = 24;
  constexpr std::uint32_t slots = 10, k = 2;
  LearnedReuse decaying;
  decaying.half_life = 32;
  Placed<LearnedReuse> policy(
      PoolShape{slots, 3, static_cast<std::uint16_t>(layers), static_cast<std::uint16_t>(experts)}, decaying);
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
  using Inputs = std::vector<std::uint32_t>;
  const auto says = [&](const Table& t, const Inputs& inputs, std::uint32_t e) {
    double x = t.b[e];
    for (const std::uint32_t i : inputs) x += t.w[i][e];
    x = std::max(-4.0, std::min(4.0, x));
    return 0.5 + x / 4 - (x < 0 ? -1 : 1) * x * x / 32;
  };
  std::vector<double> uses(layers * experts, 0.0), rank(layers * experts, 0.0);
  double time = 0;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Inputs>>
      past;  // of a layer and sequence: what was chosen, latest last
  std::vector<std::uint32_t> holds(slots);
  const auto id = [](std::uint32_t at) {
    return ExpertId{static_cast<std::uint16_t>(3 + at / experts), static_cast<std::uint16_t>(at % experts)};
  };
  for (std::uint32_t s = 0; s < slots; ++s) {
    holds[s] = s * 4;
    policy->replace(s, {id(holds[s]), Precision::full}, true);
  }
  int decided = 0, taken = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::uint32_t rows = 1 + static_cast<std::uint32_t>(i / 1000) % 2;
    policy->begin_step(StepOf(Phase::decode, rows));
    for (double& u : uses) u *= std::exp2(-1.0 / 32);
    time = time * std::exp2(-1.0 / 32) + 1;
    for (std::uint32_t l = 0; l < layers; ++l) {
      std::vector<Route> routes;
      std::vector<double> not_used(experts, 1.0);
      std::vector<bool> used(experts, false);
      for (std::uint32_t r = 0; r < rows; ++r) {
        std::vector<Inputs>& tokens = past[{l, r}];
        Inputs now;
        while (now.size() < k) {  // mostly one or two further than the token before, in a ring
          const std::uint32_t from = tokens.empty() ? 0 : tokens.back()[now.size()];
          const std::uint32_t e = random.chance(80) ? (from + random.between(1, 2)) % experts : random.below(experts);
          if (std::find(now.begin(), now.end(), e) == now.end()) now.push_back(e);
        }
        const auto inputs_of = [&](std::size_t back) {
          Inputs in = back == 0 ? now : tokens[tokens.size() - back];
          if (tokens.size() > back) {
            for (const std::uint32_t e : tokens[tokens.size() - back - 1]) in.push_back(experts + e);
          }
          return in;
        };
        for (const std::uint32_t e : now) {
          routes.push_back({static_cast<std::uint16_t>(e), 1.0F, no_expert});
          used[e] = true;
        }
        Table& t = tables[l];
        for (std::uint32_t e = 0; e < experts; ++e) {
          const double value = says(t, inputs_of(0), e);
          not_used[e] *= 1 - value;
          if (tokens.empty()) continue;
          const bool here = std::find(now.begin(), now.end(), e) != now.end();
          const Inputs before = inputs_of(1);
          const double more = 0.1 * ((here ? 0.5 : 0.0) + value / 2 - says(t, before, e));
          t.b[e] += more;
          for (const std::uint32_t in : before) t.w[in][e] += more;
        }
        tokens.push_back(now);
        if (tokens.size() > 2) tokens.erase(tokens.begin());
      }
      policy->chosen(static_cast<std::uint16_t>(3 + l), {routes.data(), static_cast<std::uint32_t>(routes.size())}, {});
      for (std::uint32_t e = 0; e < experts; ++e) {
        double& u = uses[l * experts + e];
        u += used[e] ? 1 : 0;
        rank[l * experts + e] = u + 2 * time * (1 - not_used[e]);
      }
      REQUIRE(broken(*policy) == "");
      const std::uint32_t incoming =
          l * experts + routes[random.below(static_cast<std::uint32_t>(routes.size()))].expert;
      if (std::find(holds.begin(), holds.end(), incoming) != holds.end()) continue;
      // Where nothing is in doubt. Ranks of the layer that the step has not reached are as of now, too, but for rounding.
      std::uint32_t own = no_slot, any = no_slot;
      double next_own = 1e9, next_any = 1e9;
      for (std::uint32_t s = 0; s < slots; ++s) {
        const double here = rank[holds[s]];
        if (any == no_slot || here < rank[holds[any]]) {
          next_any = any == no_slot ? 1e9 : rank[holds[any]];
          any = s;
        } else {
          next_any = std::min(next_any, here);
        }
        if (holds[s] / experts != l) continue;
        if (own == no_slot || here < rank[holds[own]]) {
          next_own = own == no_slot ? 1e9 : rank[holds[own]];
          own = s;
        } else {
          next_own = std::min(next_own, here);
        }
      }
      const double doubt = 0.03 * time;
      if (next_any - rank[holds[any]] < doubt || (own != no_slot && next_own - rank[holds[own]] < doubt)) continue;
      std::uint32_t expected = own == no_slot ? any : own;
      if (own != no_slot && own != any) {
        const double a = rank[holds[any]], b = rank[holds[own]], margin = b - a - 1.5 * std::sqrt(a + b);
        if (std::abs(margin) < doubt) continue;
        if (margin > 0) expected = any;
      }
      if (std::abs(rank[incoming] - rank[holds[expected]]) < doubt) continue;
      ++decided;
      const std::uint32_t slot = policy->victim({id(incoming), Precision::full}, {none, 1});
      REQUIRE(slot == (rank[incoming] > rank[holds[expected]] ? expected : no_slot));
      if (slot == no_slot) continue;
      ++taken;
      policy->replace(slot, {id(incoming), Precision::full}, true);
      holds[slot] = incoming;
    }
  }
  CHECK(decided > 300);
  CHECK(taken > 100);
}

TEST_CASE("a row that its layer leaves out neither teaches nor is asked") {
  Placed<LearnedReuse> policy(PoolShape{2, 0, 1, 8}), twin(PoolShape{2, 0, 1, 8});
  hold(policy, {0, 1});
  hold(twin, {0, 1});
  Random random(3);
  for (int i = 0; i < 200; ++i) {
    const auto e = static_cast<std::uint16_t>(random.below(8));
    const Route route{e, 1.0F, no_expert};
    const std::uint32_t row = 1;
    policy->begin_step(StepOf(Phase::decode, 2));
    policy->chosen(0, {&route, 1}, {&row, 1});  // of sequence 1 alone
    const std::uint32_t sequence = 1;
    twin->begin_step(Step{Phase::decode, {&sequence, 1}});
    twin->chosen(0, {&route, 1}, {});
    REQUIRE(policy->victim(full(0, e), {none, 1}) == twin->victim(full(0, e), {none, 1}));
  }
}

TEST_CASE("behind a reset a sequence of the same number is a new one") {
  // The twin is told of no reset, and of a new number for each sequence; a third one of neither.
  Placed<LearnedReuse> policy(PoolShape{3, 0, 1, 8}), twin(PoolShape{3, 0, 1, 8}), deaf(PoolShape{3, 0, 1, 8});
  for (Placed<LearnedReuse>* p : {&policy, &twin, &deaf}) hold(*p, {0, 1, 2});
  Random random(2);
  int different = 0;
  for (std::uint32_t sequence = 0; sequence < 400; ++sequence) {
    for (std::uint32_t token = 0; token < 3; ++token) {
      const auto e = static_cast<std::uint16_t>(random.chance(80) ? 2 * token + sequence % 2 : random.below(8));
      const Route route{e, 1.0F, no_expert};
      const std::uint32_t same = 0;
      policy->begin_step(Step{Phase::decode, {&same, 1}});
      twin->begin_step(Step{Phase::decode, {&sequence, 1}});
      deaf->begin_step(Step{Phase::decode, {&same, 1}});
      for (Placed<LearnedReuse>* p : {&policy, &twin, &deaf}) (*p)->chosen(0, {&route, 1}, {});
      const std::uint32_t slot = policy->victim(full(0, e), {none, 1});
      REQUIRE(slot == twin->victim(full(0, e), {none, 1}));
      if (slot != deaf->victim(full(0, e), {none, 1})) ++different;
    }
    policy->reset();
  }
  CHECK(different > 0);
}

TEST_CASE("a half-life that uses cannot have is refused") {
  LearnedReuse policy;
  policy.half_life = 0;
  CHECK_THROWS_WITH_AS(Placed<LearnedReuse>(PoolShape{1, 0, 1, 2}, policy),
                       "LearnedReuse: half_life is 0 steps, expected 1 to 4096", ConfigError);
}
