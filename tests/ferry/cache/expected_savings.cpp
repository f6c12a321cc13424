#include "ferry/cache/expected_savings.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "support/cache_drive.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Order = std::vector<std::uint32_t>;

constexpr Nanoseconds unit = 16'000'000;  // what a use saves: a multiple of what the policy counts in

ExpectedSavings decaying(std::uint32_t half_life) {
  ExpectedSavings policy;
  policy.half_life = half_life;
  return policy;
}

void pass(Placed<ExpectedSavings>& policy, int steps = 1) {
  for (int i = 0; i < steps; ++i) policy->begin_step(StepOf(Phase::decode, 1));
}

/// Uses an expert that `rows` of `of` rows chose.
void use(Placed<ExpectedSavings>& policy, ExpertId id, int times = 1, std::uint32_t rows = 1, std::uint32_t of = 1) {
  Request r;
  r.want = {id, Precision::full};
  r.rows = rows;
  for (int i = 0; i < times; ++i) policy->saved({&r, 1}, of, unit);
}

/// Ends a layer in which the host computes every miss, so that nothing is learned.
void all_on_host(Placed<ExpectedSavings>& policy, std::uint16_t layer = 0) {
  policy->loaded(layer, 0, 1);
}

/// A layer of a step: rows [rows, k] choose experts, and `loads` of ten misses are loaded.
void choose(Placed<ExpectedSavings>& policy, std::uint16_t layer, const std::vector<std::vector<std::uint16_t>>& rows,
            std::uint32_t loads = 10) {
  std::vector<Route> routes;
  std::vector<Request> uses;
  for (const auto& row : rows) {
    for (const std::uint16_t e : row) {
      routes.push_back({e, 1.0F, no_expert});
      const auto same = std::find_if(uses.begin(), uses.end(), [&](const Request& r) { return r.want.id.expert == e; });
      if (same != uses.end()) {
        ++same->rows;
        continue;
      }
      uses.emplace_back();
      uses.back().want = full(layer, e);
      uses.back().rows = 1;
    }
  }
  policy->chosen(layer, {routes.data(), static_cast<std::uint32_t>(routes.size())}, {});
  policy->saved({uses.data(), static_cast<std::uint32_t>(uses.size())}, static_cast<std::uint32_t>(rows.size()), unit);
  policy->loaded(layer, loads, 10);
  policy->finished(layer);
  REQUIRE(broken(*policy) == "");
}
/// A decode step of one layer.
void step(Placed<ExpectedSavings>& policy, const std::vector<std::vector<std::uint16_t>>& rows,
          std::uint32_t loads = 10) {
  policy->begin_step(StepOf(Phase::decode, static_cast<std::uint32_t>(rows.size())));
  choose(policy, 0, rows, loads);
}

/// How many uses count, without what is taken off for chance. `square`: the squared share of misses that are loaded, if it
/// counts.
double counted(Placed<ExpectedSavings>& policy, ExpertId id, double square = 1) {
  const double more = static_cast<double>(policy->more_saved(id, no_slot)) / unit;  // n - part sqrt(n)
  const double part = 0.5 + square;
  const double root = (part + std::sqrt(part * part + 4 * more)) / 2;
  return root * root;
}

/// The gain for an expert that is asked for now, in uses.
double gain(Placed<ExpectedSavings>& policy, ExpertId id, std::uint32_t rows = 1) {
  Request r;
  r.want = {id, Precision::full};
  r.rows = rows;
  return static_cast<double>(policy->gain(r)) / unit;
}

/// What an expert's rank has besides its counted uses. Expert 7, which was never used, serves for comparison.
double soon_saved(Placed<ExpectedSavings>& policy, ExpertId id, double square = 1) {
  return gain(policy, id) - gain(policy, {id.layer, 7}) - counted(policy, id, square);
}

}  // namespace

namespace {

/// One layer of 16 experts with two slots. The host computes the misses, and the link brings one of them a step afterwards.
struct OneLayer {
  explicit OneLayer(Nanoseconds copy_ns) : copy_ns(copy_ns) {}

  /// Runs a step that uses one expert. Whether it was resident.
  bool use(std::uint16_t expert) {
    const bool there = std::find(slots.begin(), slots.end(), expert) != slots.end();
    policy->begin_step(StepOf(Phase::decode, 1));
    const Route route{expert, 1.0F, no_expert};
    policy->chosen(0, {&route, 1}, {});
    Request r;
    r.want = full(0, expert);
    r.rows = 1;
    r.copy_ns = copy_ns;
    policy->saved({&r, 1}, 1, unit);
    if (!there) policy->loaded(0, 0, 1);
    policy->finished(0);
    const ExpertId wanted = policy->wanted();
    if (wanted.expert != no_expert) {
      const std::uint8_t none[2] = {};
      const auto free = std::find(slots.begin(), slots.end(), no_expert);
      const std::uint32_t slot = free != slots.end() ? static_cast<std::uint32_t>(free - slots.begin())
                                                     : policy->victim({wanted, Precision::full}, {none, 2});
      if (slot != no_slot && policy->more_saved(wanted, free != slots.end() ? no_slot : slot) > 0) {
        policy->replace(slot, {wanted, Precision::full}, false);
        slots[slot] = wanted.expert;
        ++brought;
      }
    }
    REQUIRE(broken(*policy) == "");
    return there;
  }
  int misses(int steps, const std::function<int(int)>& of) {
    int missed = 0;
    for (int i = 0; i < steps; ++i) missed += use(static_cast<std::uint16_t>(of(i))) ? 0 : 1;
    return missed;
  }

  Placed<ExpectedSavings> policy{PoolShape{2, 0, 1, 16}};
  std::vector<std::uint16_t> slots{no_expert, no_expert};
  Nanoseconds copy_ns;
  int brought = 0;
};

}  // namespace

TEST_CASE("where what was used last has kept more, it is what stays, and no longer once it does not") {
  OneLayer layer(unit);
  const auto favourites = [](int i) { return i % 2; };
  layer.misses(400, favourites);
  CHECK(layer.misses(100, favourites) == 0);
  const auto bursts = [](int i) { return 2 + i / 12 % 14; };
  layer.misses(12 * 4, bursts);
  CHECK(layer.misses(12 * 10, [&](int i) { return bursts(i + 12 * 4); }) == 10);  // the first use of each
  // A loop of three, in which every use would miss by last use.
  layer.misses(1200, [](int i) { return i % 3; });
  CHECK(layer.misses(300, [](int i) { return i % 3; }) == 100);
}

TEST_CASE("what takes long to bring does not follow each use") {
  const auto brought = [](Nanoseconds copy_ns) {
    OneLayer layer(copy_ns);
    layer.misses(400, [](int i) { return i % 2; });
    layer.misses(300, [](int i) { return 2 + i / 3 % 14; });  // in bursts of three uses, two can hit
    return layer.brought;
  };
  CHECK(brought(unit) > 80);
  CHECK(brought(40 * unit) < 40);
}

TEST_CASE("what was saved counts half after a half-life") {
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 1, 8}, decaying(10));
  all_on_host(policy);
  pass(policy);
  use(policy, {0, 0}, 2);
  CHECK(counted(policy, {0, 0}, 0) == doctest::Approx(2).epsilon(0.001));
  pass(policy, 10);
  use(policy, {0, 1});
  CHECK(counted(policy, {0, 0}, 0) == doctest::Approx(1).epsilon(0.001));
  CHECK(counted(policy, {0, 1}, 0) == doctest::Approx(1).epsilon(0.001));
  pass(policy, 30);
  CHECK(counted(policy, {0, 0}, 0) == doctest::Approx(0.125).epsilon(0.001));
}

TEST_CASE("a newcomer that did not save more is refused") {
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 1, 8}, decaying(64));
  all_on_host(policy);
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

TEST_CASE(
    "of what a newcomer saved more, half the root of both is left out, and one and a half where all misses are "
    "loaded") {
  Placed<ExpectedSavings> policy(PoolShape{1, 0, 1, 8}, decaying(64));
  all_on_host(policy);
  policy->replace(0, full(0, 0), true);
  use(policy, {0, 1});
  CHECK(policy->more_saved({0, 1}, 0) == doctest::Approx(0.5 * unit).epsilon(0.001));  // 1 - sqrt(1) / 2
  use(policy, {0, 0}, 6);
  use(policy, {0, 1}, 9);
  CHECK(policy->more_saved({0, 1}, 0) == doctest::Approx(2 * unit).epsilon(0.001));  // 10 - 6 - sqrt(16) / 2
  CHECK(policy->more_saved({0, 0}, 0) < 0);
  Placed<ExpectedSavings> loads(PoolShape{1, 0, 1, 8}, decaying(64));
  loads->replace(0, full(0, 0), true);
  use(loads, {0, 0}, 6);
  use(loads, {0, 1}, 10);
  CHECK(loads->more_saved({0, 1}, 0) == doctest::Approx(-2 * unit).epsilon(0.001));  // 10 - 6 - 3/2 sqrt(16)
}

TEST_CASE("a place gains what the expert saves with this use, less the least that one saves") {
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 2, 8}, decaying(64));
  all_on_host(policy, 0);
  all_on_host(policy, 1);
  pass(policy);
  use(policy, {0, 1}, 3);
  use(policy, {1, 0}, 2);
  use(policy, {1, 1}, 5);
  CHECK(gain(policy, {0, 1}) == doctest::Approx(4).epsilon(0.001));
  CHECK(gain(policy, {0, 2}) == doctest::Approx(1).epsilon(0.001));
  policy->replace(0, full(1, 0), true);
  policy->replace(1, full(1, 1), true);
  const std::uint8_t none[2] = {}, first[2] = {1, 0};
  CHECK(policy->victim(full(0, 1), {none, 1}) == 0);  // of 2
  CHECK(gain(policy, {0, 1}) == doctest::Approx(2).epsilon(0.001));
  CHECK(policy->victim(full(0, 1), {first, 1}) == no_slot);  // it would be the one of 5
  CHECK(gain(policy, {0, 1}) == doctest::Approx(-1).epsilon(0.001));
  // Long after, when everything was divided: an eighth of an eighth of 3 and of 5, and this use.
  pass(policy, 6 * 64);
  CHECK(gain(policy, {0, 1}) == doctest::Approx((3.0 - 5.0) / 64 + 1).epsilon(0.001));
}

TEST_CASE("a place gains in a prompt by its rows, as if as many steps had gone as count in the long run") {
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 2, 8}, decaying(64));
  policy->begin_step(StepOf(Phase::prefill, 4));
  use(policy, {0, 1}, 1, 3, 4);  // what a use saves is known from this layer
  // Uses by one row in four, and by two: so many in each of the 64 / ln 2 steps that count.
  CHECK(gain(policy, {1, 1}, 1) == doctest::Approx(0.25 * 92.33).epsilon(0.001));
  CHECK(gain(policy, {1, 2}, 2) == doctest::Approx(0.5 * 92.33).epsilon(0.001));
  policy->begin_step(StepOf(Phase::prefill, 4));  // of eight rows two
  CHECK(gain(policy, {0, 5}, 2) == doctest::Approx(0.25 * 92.33).epsilon(0.05));
}

TEST_CASE("a use that saves more counts more, and one that saves nothing not at all") {
  Placed<ExpectedSavings> policy(PoolShape{1, 0, 1, 8});
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
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 2, 8}, decaying(64));
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

TEST_CASE("wanted is the absent expert that saved most") {
  Placed<ExpectedSavings> policy(PoolShape{2, 3, 2, 8});
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
    Placed<ExpectedSavings> policy(PoolShape{slots, 1, layers, experts}, decaying(half_life));
    all_on_host(policy, 1);
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

// Where misses are loaded.

TEST_CASE("what follows what is used now keeps its place, though it was not used last") {
  // 0 follows 1, and 2 follows 3; pairs come at random.
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 1, 8});
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const bool first = random.chance(50);
    step(policy, {{static_cast<std::uint16_t>(first ? 1 : 3)}});
    step(policy, {{static_cast<std::uint16_t>(first ? 0 : 2)}});
  }
  policy->replace(0, full(0, 0), true);
  policy->replace(1, full(0, 2), true);
  const std::uint8_t none[2] = {};
  step(policy, {{1}});
  CHECK(policy->victim(full(0, 1), {none, 1}) == 1);
  step(policy, {{0}});
  step(policy, {{3}});
  CHECK(policy->victim(full(0, 3), {none, 1}) == 0);
}

TEST_CASE("what is used soon counts by the square of the share of misses that are loaded, and not below a quarter") {
  // 0 and 1 take turns for long. What 1 saves soon, now that 0 is used, is twice v for all steps that count, which are at most
  // 64 / ln 2 = 92. v is 2/3 for a use in every second token from the next one on.
  const auto soon = [](std::uint32_t loads) {
    Placed<ExpectedSavings> policy(PoolShape{1, 0, 1, 8}, decaying(64));
    for (std::uint16_t i = 0; i < 4000; ++i) step(policy, {{static_cast<std::uint16_t>(i % 2)}}, loads);
    step(policy, {{0}}, loads);
    return soon_saved(policy, {0, 1}, loads < 3 ? 0 : loads * loads / 100.0);
  };
  const double all = soon(10);
  CHECK(all == doctest::Approx(2 * 92.8 * 2 / 3).epsilon(0.03));
  CHECK(soon(5) == doctest::Approx(all / 4).epsilon(0.02));
  CHECK(soon(3) == doctest::Approx(all * 0.09).epsilon(0.05));
  CHECK(soon(2) == doctest::Approx(0).epsilon(0.001));
  CHECK(soon(0) == doctest::Approx(0).epsilon(0.001));
}

TEST_CASE("the share of misses that are loaded is the mean of the first layers with misses, and then of late") {
  Placed<ExpectedSavings> policy(PoolShape{1, 0, 1, 8}, decaying(4096));
  const auto learns = [&policy](double square) { return soon_saved(policy, {0, 1}, square) > 10; };
  for (int i = 0; i < 1000; ++i) step(policy, {{static_cast<std::uint16_t>(i % 2)}}, 10);
  step(policy, {{0}}, 10);
  CHECK(learns(1));
  // After n layers without loads the share is (511/512)^n, which is a quarter at 709.
  for (int i = 0; i < 690; ++i) step(policy, {{static_cast<std::uint16_t>(i % 2)}}, 0);
  step(policy, {{0}}, 0);
  CHECK(learns(0.26 * 0.26));
  for (int i = 0; i < 40; ++i) step(policy, {{static_cast<std::uint16_t>(i % 2)}}, 0);
  step(policy, {{0}}, 0);
  CHECK(!learns(0));
  Placed<ExpectedSavings> fresh(PoolShape{2, 0, 1, 8});
  fresh->begin_step(StepOf(Phase::prefill, 1));
  fresh->loaded(0, 1, 1);  // neither a prompt nor a layer without misses changes the share
  step(fresh, {{0}}, 0);
  fresh->loaded(0, 0, 0);
  fresh->replace(0, full(0, 0), true);
  CHECK(fresh->more_saved({0, 7}, 0) == doctest::Approx(-1.5 * unit).epsilon(0.001));  // one use, and half its root
}

TEST_CASE("what nobody waits for takes a place by what it saved alone") {
  // 1 always follows 0. A newcomer only counts with its past uses, against residents that also count with what is used soon.
  Placed<ExpectedSavings> policy(PoolShape{1, 0, 1, 8});
  for (std::uint16_t i = 0; i < 400; ++i) step(policy, {{static_cast<std::uint16_t>(i % 2)}});
  step(policy, {{0}});
  const double uses = counted(policy, {0, 1});
  CHECK(uses > 50);
  CHECK(uses < 93);                      // every other of 185 steps
  policy->replace(0, full(0, 2), true);  // never used
  CHECK(policy->wanted() == ExpertId{0, 0});
  const std::uint8_t none[1] = {};
  CHECK(policy->victim(full(0, 1), {none, 1}) == 0);
  policy->replace(0, full(0, 1), true);
  CHECK(policy->victim(full(0, 0), {none, 1}) == no_slot);
  CHECK(policy->more_saved({0, 0}, 0) < -50 * unit);
}

TEST_CASE("a place of another layer is taken if that ranks below the own layer's least by more than chance") {
  const auto victim = [](int uses_there, std::uint32_t loads) {
    Placed<ExpectedSavings> policy(PoolShape{2, 0, 2, 64}, decaying(4096));
    policy->replace(0, full(0, 0), true);
    policy->replace(1, full(1, 0), true);
    const auto both = [&](std::uint16_t first, std::uint16_t second) {
      step(policy, {{first}}, loads);
      choose(policy, 1, {{second}}, loads);
    };
    for (int i = 0; i < 40; ++i) both(0, static_cast<std::uint16_t>(i < uses_there ? 0 : 1));
    for (int i = 0; i < 100; ++i)
      both(i % 2 == 0 ? 1 : 3, i % 2 == 0 ? 2 : 3);  // by their last use all would be missed
    step(policy, {{1}}, loads);
    const std::uint8_t none[2] = {};
    return policy->victim(full(0, 1), {none, 1});
  };
  CHECK(victim(40, 10) == 0);
  CHECK(victim(30, 10) == 0);
  CHECK(victim(2, 10) == 1);
  CHECK(victim(30, 0) == 1);  // where the host computes, the least of all
}

TEST_CASE("with all of its layer in use, what is loaded takes another layer's place by more than chance, or none") {
  // As in a batch that uses nearly everything: what comes later in this step has only not been counted yet.
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 2, 8});
  policy->replace(0, full(0, 0), true);
  policy->replace(1, full(1, 0), true);
  for (int i = 0; i < 100; ++i) {
    step(policy, {{0, 1}});
    choose(policy, 1, {{0}});
  }
  step(policy, {{0, 1}});
  const std::uint8_t own[2] = {1, 0};
  CHECK(policy->victim(full(0, 1), {own, 1}) == no_slot);
  for (int i = 0; i < 400; ++i) {  // expert 0 of layer 1 is not used any more
    step(policy, {{0, 1}});
    choose(policy, 1, {{2}});
  }
  step(policy, {{0, 1}});
  CHECK(policy->victim(full(0, 1), {own, 1}) == 1);
}

namespace {

/// Two layers with a place each. The second layer's resident expert 0 is used in every 64th step. The first layer's 0 is used
/// in every fourth step, and its expert 1, which has no place, in the others.
struct SeldomAndOften {
  explicit SeldomAndOften(std::uint32_t loads) : loads(loads) {
    policy->replace(0, full(0, 0), true);
    policy->replace(1, full(1, 0), true);
    for (int i = 0; i < 64 * 20; ++i) next();
  }
  void next() {
    step(policy, {{static_cast<std::uint16_t>(now % 4 == 0 ? 0 : 1)}}, loads);
    choose(policy, 1, {{static_cast<std::uint16_t>(now % 64 == 63 ? 0 : 1 + now % 8)}}, loads);
    ++now;
  }
  std::uint32_t victim(bool own_in_use = false) {
    const std::uint8_t in_use[2] = {own_in_use ? std::uint8_t{1} : std::uint8_t{0}, 0};
    return policy->victim(full(0, 1), {in_use, 1});
  }

  Placed<ExpectedSavings> policy{PoolShape{2, 0, 2, 64}, decaying(4096)};
  std::uint32_t loads;
  int now = 0;
};

}  // namespace

TEST_CASE("where the least of all is used before the own layer's least, each layer keeps its share of the places") {
  SeldomAndOften layers(10);
  for (int i = 0; i < 3; ++i) {
    while (layers.now % 64 != 63) layers.next();
    CHECK(layers.victim() == 1);  // the expert that is seldom used, and is used in this very step
    layers.next();
  }
  CHECK(layers.victim() == 0);
  CHECK(layers.victim(true) == 1);  // whether the newcomer stays out otherwise is another question
  for (int i = 0; i < 4; ++i) {
    while (layers.now % 4 != 0 || layers.now % 64 == 63) layers.next();
    layers.victim();
    layers.next();
  }
  CHECK(layers.victim() == 1);
}

TEST_CASE("shares decide nothing where the host computes some of what is missing") {
  SeldomAndOften layers(9);
  for (int i = 0; i < 6; ++i) {
    while (layers.now % 64 != 63) layers.next();
    CHECK(layers.victim() == 1);
    layers.next();
  }
}

namespace {

/// Some layers whose missing experts the link brings, into free places or a victim's.
struct SomeLayers {
  SomeLayers(std::uint32_t places, std::uint16_t layers, std::uint16_t experts)
      : policy(PoolShape{places, 0, layers, experts}), slots(places, none) {}

  /// Runs a step, given the experts by layer. Returns how many of them were missing.
  int use(const std::vector<std::vector<std::uint16_t>>& experts) {
    policy->begin_step(StepOf(Phase::decode, 1));
    int missing = 0;
    for (std::uint16_t l = 0; l < experts.size(); ++l) missing += use(l, experts[l]);
    return missing;
  }
  [[nodiscard]] std::size_t held(std::uint16_t layer) const {
    return static_cast<std::size_t>(
        std::count_if(slots.begin(), slots.end(), [&](ExpertId id) { return id.layer == layer; }));
  }

  static constexpr ExpertId none{no_layer, no_expert};
  Placed<ExpectedSavings> policy;
  std::vector<ExpertId> slots;

 private:
  std::vector<ExpertId>::iterator find(ExpertId id) { return std::find(slots.begin(), slots.end(), id); }
  int use(std::uint16_t layer, const std::vector<std::uint16_t>& experts) {
    std::vector<std::uint8_t> barred(slots.size());
    std::vector<std::uint16_t> missing;
    for (const std::uint16_t e : experts) {
      const auto at = find({layer, e});
      if (at != slots.end()) barred[static_cast<std::size_t>(at - slots.begin())] = 1;
      if (at == slots.end()) missing.push_back(e);
    }
    choose(policy, layer, {experts});
    for (const std::uint16_t e : missing) {
      const auto free = find(none);
      const std::uint32_t slot = free != slots.end() ? static_cast<std::uint32_t>(free - slots.begin())
                                                     : policy->victim(full(layer, e), {barred.data(), 1});
      if (slot == no_slot) continue;
      policy->replace(slot, full(layer, e), true);
      slots[slot] = {layer, e};
      barred[slot] = 1;
    }
    return static_cast<int>(missing.size());
  }
};

}  // namespace

namespace {

std::vector<std::uint16_t> pair_from(int first) {
  return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(first + 1)};
}

}  // namespace

TEST_CASE("a layer that uses few experts leaves its places to one that uses all") {
  Random random(3);
  SomeLayers layers(10, 2, 8);
  const auto steps = [&](int count) {
    int missed = 0;
    for (int i = 0; i < count; ++i) {
      const auto any = static_cast<std::uint16_t>(random.below(8));
      missed += layers.use({{2, 5}, {any, static_cast<std::uint16_t>((any + 1 + random.below(7)) % 8)}});
    }
    return missed;
  };
  for (int i = 0; i < 12; ++i) layers.use({pair_from(i % 3 * 2), pair_from(i % 2 * 2)});
  REQUIRE(layers.held(0) == 6);
  steps(300);
  CHECK(steps(300) == 0);  // two places and eight; with equal shares three eighths would miss
}

TEST_CASE("by the last use each layer keeps its share, though another's experts were not used for longer") {
  SomeLayers layers(8, 2, 64);
  for (int i = 0; i < 400; ++i) layers.use({pair_from(i % 2 * 2), pair_from(i % 2 * 2)});
  REQUIRE(layers.held(1) == 4);
  int by_last_use = 0;
  for (int i = 0; i < 240; ++i) {  // new ones every few steps; two of the second layer's four are not used any more
    const bool leads = layers.policy->each_gains();
    layers.use({pair_from(4 + i / 12 * 2 % 60), pair_from(0)});
    if (!leads) continue;
    ++by_last_use;
    REQUIRE(layers.held(1) == 4);
  }
  CHECK(by_last_use > 100);
}

TEST_CASE(
    "by the last use a layer takes its share of one that has more, though another's experts were not used for longer") {
  SomeLayers layers(12, 3, 64);
  for (int i = 0; i < 600; ++i) layers.use({pair_from(i % 3 * 2), pair_from(0), pair_from(i % 2 * 2)});
  for (int i = 0; i < 48; ++i) layers.use({pair_from(6 + i / 12 * 2), pair_from(0), pair_from(0)});
  REQUIRE(layers.policy->each_gains());
  REQUIRE(layers.held(0) == 6);
  REQUIRE(layers.held(1) == 2);
  REQUIRE(layers.held(2) == 4);  // two of them unused for longer than all others
  layers.use({pair_from(12), pair_from(2), pair_from(0)});
  CHECK(layers.held(1) == 4);
  CHECK(layers.held(2) == 4);
}

TEST_CASE("what was used of late takes places sooner where the subject has changed") {
  // Four experts are used for long, then four others. Counts the steps after the change until a newcomer may take a place.
  const auto waits = [](bool changed_before) {
    Placed<ExpectedSavings> policy(PoolShape{4, 0, 1, 8});
    for (std::uint16_t s = 0; s < 4; ++s) policy->replace(s, full(0, s), true);
    Random random(3);
    for (int i = 0; i < 600; ++i) {
      const std::uint32_t first = changed_before && i / 50 % 2 == 1 ? 4 : 0;
      step(policy, {{static_cast<std::uint16_t>(first + random.below(4))}}, 0);
    }
    for (int i = 1; i < 300; ++i) {
      step(policy, {{static_cast<std::uint16_t>(4 + random.below(4))}}, 0);
      for (std::uint32_t s = 0; s < 4; ++s) {
        if (policy->more_saved(policy->wanted(), s) > 0) return i;
      }
    }
    return 300;
  };
  CHECK(waits(false) < 100);
  CHECK(waits(true) < 60);
}

TEST_CASE("where uses tell nothing of what comes, what is there stays in decode, until they tell again") {
  Placed<ExpectedSavings> policy(PoolShape{4, 0, 2, 8});
  for (std::uint16_t s = 0; s < 4; ++s) policy->replace(s, full(s / 2, s % 2), true);
  Random random(8);
  const std::uint8_t none[4] = {};
  // Whether the most used absent expert may take a place, as a promotion or as a miss.
  const auto moves = [&] {
    const ExpertId best = policy->wanted();
    if (best.expert == no_expert) return false;
    for (std::uint32_t slot = 0; slot < 4; ++slot) {
      if (policy->more_saved(best, slot) > 0) return true;
    }
    return gain(policy, best) > 0 || policy->victim(Variant{best, Precision::full}, {none, 1}) != no_slot;
  };
  const auto steps = [&](std::uint32_t count, std::uint32_t of, bool in_turn) {
    int moved = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto next = [&] { return static_cast<std::uint16_t>(8 - of + (in_turn ? i % of : random.below(of))); };
      step(policy, {{next()}}, 0);
      choose(policy, 1, {{next()}}, 0);
      moved += moves() ? 1 : 0;
    }
    return moved;
  };
  steps(200, 8, true);  // each in turn, so that what was used last comes last
  CHECK(steps(200, 8, true) == 0);
  CHECK(policy->more_saved(policy->wanted(), no_slot) > 0);  // but it may still take a free place
  use(policy, {0, 5}, 100);                                  // uses from which nothing was learned yet
  CHECK(policy->more_saved({0, 5}, 0) == 0);
  CHECK(gain(policy, {0, 5}) == 0);
  CHECK(policy->victim(full(0, 5), {none, 1}) == no_slot);
  policy->begin_step(StepOf(Phase::prefill, 4));  // in a prompt the rows themselves tell
  use(policy, {0, 7}, 1, 4, 4);
  CHECK(policy->victim(full(0, 7), {none, 1}) != no_slot);
  CHECK(gain(policy, {0, 7}, 4) > 0);
  CHECK(steps(200, 4, false) > 150);  // four of the eight experts only
}

TEST_CASE("the rows of a prompt teach") {
  // 4, 5, 6, 7 come in turn: 5 follows 4, then comes 6, and 4 itself comes last.
  Placed<ExpectedSavings> policy(PoolShape{2, 0, 1, 8});
  policy->replace(0, full(0, 6), true);
  policy->replace(1, full(0, 7), true);
  std::vector<std::vector<std::uint16_t>> rows;
  for (std::uint16_t i = 0; i < 200; ++i) rows.push_back({static_cast<std::uint16_t>(4 + i % 4)});
  for (int i = 0; i < 6; ++i) {
    policy->begin_step(StepOf(Phase::prefill, 200));
    choose(policy, 0, rows);
  }
  step(policy, {{4}});
  const std::uint8_t none[2] = {};
  CHECK(policy->victim(full(0, 5), {none, 1}) == 1);
  CHECK(policy->victim(full(0, 4), {none, 1}) == no_slot);
}

TEST_CASE("behind a reset a sequence of the same number is a new one") {
  // The twin is not reset, and gets a new number for each sequence instead.
  Placed<ExpectedSavings> policy(PoolShape{3, 0, 1, 8}), twin(PoolShape{3, 0, 1, 8});
  for (Placed<ExpectedSavings>* p : {&policy, &twin}) {
    for (std::uint16_t s = 0; s < 3; ++s) (*p)->replace(s, full(0, s), true);
  }
  Random random(2);
  for (std::uint32_t sequence = 0; sequence < 400; ++sequence) {
    for (std::uint32_t token = 0; token < 3; ++token) {
      const auto e = static_cast<std::uint16_t>(random.chance(80) ? 2 * token + sequence % 2 : random.below(8));
      const std::uint32_t same = 0;
      policy->begin_step(Step{Phase::decode, {&same, 1}});
      twin->begin_step(Step{Phase::decode, {&sequence, 1}});
      for (Placed<ExpectedSavings>* p : {&policy, &twin}) choose(*p, 0, {{e}});
      for (std::uint32_t s = 0; s < 3; ++s) REQUIRE(policy->more_saved({0, 7}, s) == twin->more_saved({0, 7}, s));
    }
    policy->reset();
  }
}

TEST_CASE("a half-life that cannot be is refused") {
  CHECK_THROWS_WITH_AS(Placed<ExpectedSavings>(PoolShape{1, 0, 1, 2}, decaying(0)),
                       "ExpectedSavings: half_life is 0 steps, expected 1 to 4096", ConfigError);
  CHECK_THROWS_AS(Placed<ExpectedSavings>(PoolShape{1, 0, 1, 2}, decaying(4097)), ConfigError);
}
