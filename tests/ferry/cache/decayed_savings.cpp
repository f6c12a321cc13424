#include "ferry/cache/decayed_savings.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "support/cache_drive.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

constexpr Nanoseconds unit = 16'000'000;  // what a use saves: a multiple of what the policy counts in

DecayedSavings decaying(std::uint32_t half_life) {
  DecayedSavings policy;
  policy.half_life = half_life;
  return policy;
}

void pass(Placed<DecayedSavings>& policy, int steps = 1) {
  for (int i = 0; i < steps; ++i) policy->begin_step(StepOf(Phase::decode, 1));
}

/// An expert that `rows` of the `of` rows chose.
void use(Placed<DecayedSavings>& policy, ExpertId id, int times = 1, std::uint32_t rows = 1, std::uint32_t of = 1) {
  Request r;
  r.want = {id, Precision::full};
  r.rows = rows;
  for (int i = 0; i < times; ++i) policy->saved({&r, 1}, of, unit);
}

/// In uses, and without what is taken off for chance.
double counted(Placed<DecayedSavings>& policy, ExpertId id) {
  const double more = static_cast<double>(policy->more_saved(id, no_slot)) / unit;  // n - sqrt(n) / 2
  const double root = (0.5 + std::sqrt(0.25 + 4 * more)) / 2;
  return root * root;
}

}  // namespace

TEST_CASE("what was saved counts half after a half-life") {
  Placed<DecayedSavings> policy(PoolShape{2, 0, 1, 8}, decaying(10));
  pass(policy);
  use(policy, {0, 0}, 2);
  CHECK(counted(policy, {0, 0}) == doctest::Approx(2).epsilon(0.001));
  pass(policy, 10);
  use(policy, {0, 1});  // the layer was reached in this step, too
  CHECK(counted(policy, {0, 0}) == doctest::Approx(1).epsilon(0.001));
  CHECK(counted(policy, {0, 1}) == doctest::Approx(1).epsilon(0.001));
  pass(policy, 30);
  use(policy, {0, 1});
  CHECK(counted(policy, {0, 0}) == doctest::Approx(0.125).epsilon(0.001));
}

TEST_CASE("a newcomer that did not save more is refused") {
  Placed<DecayedSavings> policy(PoolShape{2, 0, 1, 8}, decaying(64));
  for (std::uint16_t s = 0; s < 2; ++s) policy->replace(s, full(0, s), true);
  use(policy, {0, 0}, 4);
  use(policy, {0, 1}, 2);
  use(policy, {0, 2}, 2);
  const std::uint8_t none[2] = {}, second[2] = {0, 1};
  CHECK(policy->victim(full(0, 2), {none, 1}) == no_slot);
  use(policy, {0, 2});
  CHECK(policy->victim(full(0, 2), {none, 1}) == 1);
  CHECK(policy->victim(full(0, 2), {second, 1}) == no_slot);
}

TEST_CASE("of what a newcomer saved more, half the root of both is left out") {
  Placed<DecayedSavings> policy(PoolShape{1, 0, 1, 8}, decaying(64));
  policy->replace(0, full(0, 0), true);
  use(policy, {0, 1});
  CHECK(policy->more_saved({0, 1}, 0) == doctest::Approx(0.5 * unit).epsilon(0.001));  // 1 - sqrt(1) / 2
  use(policy, {0, 0}, 6);
  use(policy, {0, 1}, 9);
  CHECK(policy->more_saved({0, 1}, 0) == doctest::Approx(2 * unit).epsilon(0.001));  // 10 - 6 - sqrt(16) / 2
  CHECK(policy->more_saved({0, 0}, 0) < 0);
}

TEST_CASE("a use that saves more counts more, and one that saves nothing not at all") {
  Placed<DecayedSavings> policy(PoolShape{1, 0, 1, 8});
  Request r;
  r.want = full(0, 0);
  policy->saved({&r, 1}, 1, 0);
  policy->saved({&r, 1}, 1, -5);
  CHECK(policy->wanted().expert == no_expert);
  policy->saved({&r, 1}, 1, 3);  // below the unit, and more than nothing
  CHECK(policy->wanted() == ExpertId{0, 0});
  r.want = full(0, 1);
  policy->saved({&r, 1}, 1, unit);
  CHECK(policy->wanted() == ExpertId{0, 1});
}

TEST_CASE("a prompt's uses count by its rows, and make room in their own layer only") {
  Placed<DecayedSavings> policy(PoolShape{2, 0, 2, 8}, decaying(64));
  policy->replace(0, full(0, 0), true);
  policy->replace(1, full(1, 0), true);
  policy->begin_step(StepOf(Phase::prefill, 4));
  use(policy, {0, 1}, 1, 3, 4);  // as a decode step a row, in which three of four rows chose it
  use(policy, {0, 2}, 1, 1, 4);
  CHECK(counted(policy, {0, 1}) == doctest::Approx(3).epsilon(0.001));
  CHECK(counted(policy, {0, 2}) == doctest::Approx(1).epsilon(0.001));
  const std::uint8_t none[2] = {}, first[2] = {1, 0};
  CHECK(policy->victim(full(0, 1), {none, 1}) == 0);
  CHECK(policy->victim(full(0, 1), {first, 1}) == no_slot);
  policy->begin_step(StepOf(Phase::prefill, 1000));  // as eight steps, an eighth of the half-life
  use(policy, {1, 5}, 1, 500, 1000);
  CHECK(counted(policy, {1, 5}) == doctest::Approx(4).epsilon(0.001));
  CHECK(counted(policy, {0, 1}) == doctest::Approx(3 * std::exp2(-8.0 / 64)).epsilon(0.001));
  CHECK(policy->victim(full(1, 5), {none, 1}) == 1);
}

TEST_CASE("layers that a step has not reached rank with those that it has") {
  Placed<DecayedSavings> policy(PoolShape{2, 0, 2, 8}, decaying(1));
  policy->replace(0, full(0, 0), true);
  policy->replace(1, full(1, 0), true);
  use(policy, {0, 1}, 4);
  use(policy, {1, 0}, 4);
  pass(policy);            // half is left of all of it,
  use(policy, {0, 1}, 1);  // and this one has 3 instead of 4
  const std::uint8_t first[2] = {1, 0};
  CHECK(policy->victim(full(0, 1), {first, 1}) == no_slot);
  use(policy, {0, 1}, 2);  // 5
  CHECK(policy->victim(full(0, 1), {first, 1}) == 1);
}

TEST_CASE("wanted is the absent expert that saved most") {
  Placed<DecayedSavings> policy(PoolShape{2, 3, 2, 8});
  CHECK(policy->wanted().expert == no_expert);
  use(policy, {3, 1});
  CHECK(policy->wanted() == ExpertId{3, 1});
  use(policy, {4, 5});
  CHECK(policy->wanted() == ExpertId{3, 1});  // the lower layer of equals
  policy->replace(0, full(3, 1), false);
  CHECK(policy->wanted() == ExpertId{4, 5});
  policy->replace(1, full(4, 5), false);
  CHECK(policy->wanted().expert == no_expert);
  policy->replace(1, full(4, 6), false);  // 5 has left
  CHECK(policy->wanted() == ExpertId{4, 5});
}

TEST_CASE("over thousands of steps, against sums of powers") {
  constexpr std::uint16_t layers = 3, experts = 70;
  constexpr std::uint32_t slots = 12;
  for (const std::uint32_t half_life : {7U, 300U, 4096U}) {
    CAPTURE(half_life);
    Placed<DecayedSavings> policy(PoolShape{slots, 1, layers, experts}, decaying(half_life));
    Random random(half_life);
    std::vector<double> uses(layers * experts, 0.0);
    std::vector<std::uint32_t> holds(slots);
    const auto id = [](std::uint32_t at) {
      return ExpertId{static_cast<std::uint16_t>(1 + at / experts), static_cast<std::uint16_t>(at % experts)};
    };
    for (std::uint32_t s = 0; s < slots; ++s) {
      holds[s] = s * 17;
      policy->replace(s, {id(holds[s]), Precision::full}, true);
    }
    const auto is_there = [&](std::uint32_t at) { return std::find(holds.begin(), holds.end(), at) != holds.end(); };
    int decided = 0;
    for (int i = 0; i < 3000; ++i) {
      pass(policy);
      for (double& u : uses) u *= std::exp2(-1.0 / half_life);
      std::vector<std::uint32_t> chosen;
      for (int n = 0; n < 6; ++n)  // some far more often than others
        chosen.push_back(std::min(random.below(layers * experts), random.below(layers * experts)));
      std::sort(chosen.begin(), chosen.end());
      for (const std::uint32_t at : chosen) {
        use(policy, id(at));
        uses[at] += 1;
      }
      use(policy, id(layers * experts - 1));  // the last layer is reached
      uses.back() += 1;
      std::uint8_t flags[slots];
      for (auto& f : flags) f = random.chance(30) ? 1 : 0;
      // Where the sums leave no doubt.
      double most = 0, second = 0, least = 1e9, next = 1e9;
      std::uint32_t wanted = 0, victim = no_slot;
      for (std::uint32_t at = 0; at < uses.size(); ++at) {
        if (is_there(at)) continue;
        if (uses[at] > most) {
          second = most;
          most = uses[at];
          wanted = at;
        } else {
          second = std::max(second, uses[at]);
        }
      }
      for (std::uint32_t s = 0; s < slots; ++s) {
        if (flags[s] != 0) continue;
        if (uses[holds[s]] < least) {
          next = least;
          least = uses[holds[s]];
          victim = s;
        } else {
          next = std::min(next, uses[holds[s]]);
        }
      }
      REQUIRE(broken(*policy) == "");
      if (most - second < 1e-3 * most || victim == no_slot || next - least < 1e-3 * most) continue;
      if (std::abs(most - least) < 1e-3 * most) continue;
      ++decided;
      REQUIRE(policy->wanted() == id(wanted));
      const std::uint32_t slot = policy->victim({id(wanted), Precision::full}, {flags, 1});
      REQUIRE(slot == (most > least ? victim : no_slot));
      if (slot == no_slot || random.chance(50)) continue;
      const double more = static_cast<double>(policy->more_saved(id(wanted), slot)) / unit;
      REQUIRE(std::abs(more - (most - least - 0.5 * std::sqrt(most + least))) < 0.002 + 0.001 * most);
      policy->replace(slot, {id(wanted), Precision::full}, false);
      holds[slot] = wanted;
    }
    CHECK(decided > 300);
  }
}

TEST_CASE("a half-life that cannot be is refused") {
  CHECK_THROWS_WITH_AS(Placed<DecayedSavings>(PoolShape{1, 0, 1, 2}, decaying(0)),
                       "DecayedSavings: half_life is 0 steps, expected 1 to 4096", ConfigError);
  CHECK_THROWS_AS(Placed<DecayedSavings>(PoolShape{1, 0, 1, 2}, decaying(4097)), ConfigError);
}
