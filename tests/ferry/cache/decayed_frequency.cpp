#include "ferry/cache/decayed_frequency.hpp"

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

DecayedFrequency decaying(std::uint32_t half_life, std::uint32_t margin) {
  DecayedFrequency policy;
  policy.half_life = half_life;
  policy.margin_percent = margin;
  return policy;
}

void pass(Placed<DecayedFrequency>& policy, int steps = 1) {
  for (int i = 0; i < steps; ++i) policy->begin_step(StepOf(Phase::decode, 1));
}

}  // namespace

TEST_CASE("a use counts half after a half-life") {
  Placed<DecayedFrequency> policy(PoolShape{2, 0, 1, 8}, decaying(10, 0));
  pass(policy);
  policy->used(full(0, 0));
  policy->used(full(0, 0));
  CHECK(policy->more_uses({0, 0}, no_slot) == doctest::Approx(2 << 20).epsilon(0.001));
  pass(policy, 10);
  CHECK(policy->more_uses({0, 0}, no_slot) == doctest::Approx(1 << 20).epsilon(0.001));
  pass(policy, 30);
  CHECK(policy->more_uses({0, 0}, no_slot) == doctest::Approx(1 << 17).epsilon(0.001));
}

TEST_CASE("a newcomer that was not used more by the margin is refused") {
  Placed<DecayedFrequency> policy(PoolShape{2, 0, 1, 8}, decaying(64, 50));
  for (std::uint16_t s = 0; s < 2; ++s) policy->replace(s, full(0, s), true);
  for (int i = 0; i < 4; ++i) policy->used(full(0, 0));
  for (int i = 0; i < 2; ++i) policy->used(full(0, 1));
  for (int i = 0; i < 3; ++i) policy->used(full(0, 2));
  const std::uint8_t none[2] = {}, second[2] = {0, 1};
  CHECK(policy->victim(full(0, 2), {none, 1}) == no_slot);  // 3 are not more than half as many again as 2
  policy->used(full(0, 2));
  CHECK(policy->victim(full(0, 2), {none, 1}) == 1);
  CHECK(policy->victim(full(0, 2), {second, 1}) == no_slot);
  CHECK(policy->more_uses({0, 2}, 1) == 2 << 20);
}

TEST_CASE("wanted is the absent expert that was used most") {
  Placed<DecayedFrequency> policy(PoolShape{2, 3, 2, 8});
  CHECK(policy->wanted().expert == no_expert);
  policy->used(full(4, 5));
  CHECK(policy->wanted() == ExpertId{4, 5});
  policy->used(full(3, 1));
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
    Placed<DecayedFrequency> policy(PoolShape{slots, 1, layers, experts}, decaying(half_life, 0));
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
      for (int n = 0; n < 6; ++n) {  // some far more often than others
        const std::uint32_t at = std::min(random.below(layers * experts), random.below(layers * experts));
        policy->used({id(at), Precision::full});
        uses[at] += 1;
      }
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
      const double more = static_cast<double>(policy->more_uses(id(wanted), slot)) / (1 << 20);
      REQUIRE(std::abs(more - (most - least)) < 0.002 + 0.001 * most);
      policy->replace(slot, {id(wanted), Precision::full}, false);
      holds[slot] = wanted;
    }
    CHECK(decided > 300);
  }
}

TEST_CASE("a half-life that cannot be is refused") {
  CHECK_THROWS_WITH_AS(Placed<DecayedFrequency>(PoolShape{1, 0, 1, 2}, decaying(0, 0)),
                       "DecayedFrequency: half_life is 0 steps, expected 1 to 4096", ConfigError);
  CHECK_THROWS_AS(Placed<DecayedFrequency>(PoolShape{1, 0, 1, 2}, decaying(4097, 0)), ConfigError);
}
