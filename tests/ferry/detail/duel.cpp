#include "ferry/detail/duel.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "support/policies.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// detail::Duel is no policy; it is placed like one.
struct PlacedDuel : detail::Duel {
  void reserve(Carver& carve, std::uint32_t experts) { detail::Duel::reserve(carve, experts); }
};
using SomeDuel = Placed<PlacedDuel>;

/// Decides `times` duels, all in favour of one way.
void settle(SomeDuel& duel, bool second_is_right, int times, std::uint32_t kind = 0) {
  for (int i = 0; i < times; ++i) {
    duel->begin(kind, 0, 1);
    duel->used(second_is_right ? 0 : 1);
    REQUIRE(broken(*duel) == "");
  }
}

}  // namespace

TEST_CASE("whose victims are used first is not followed") {
  SomeDuel duel(4U);
  CHECK_FALSE(duel->second_leads(0));
  settle(duel, true, 2);
  CHECK_FALSE(duel->second_leads(0));  // two may be chance
  settle(duel, true, 1);
  CHECK(duel->second_leads(0));
  settle(duel, false, 2);  // ahead by one of five
  CHECK(duel->second_leads(0));
  settle(duel, false, 1);
  CHECK_FALSE(duel->second_leads(0));
}

TEST_CASE("an expert is not watched beside itself") {
  SomeDuel duel(4U);
  duel->begin(0, 2, 2);
  CHECK(broken(*duel) == "");
  for (int i = 0; i < 9; ++i) duel->used(2);
  CHECK_FALSE(duel->second_leads(0));
  duel->begin(0, 2, 3);
  CHECK(broken(*duel) == "");
}

TEST_CASE("each kind is decided by itself") {
  SomeDuel duel(4U);
  for (std::uint32_t kind = 0; kind < detail::Duel::kinds; ++kind) settle(duel, kind % 2 == 1, 3, kind);
  for (std::uint32_t kind = 0; kind < detail::Duel::kinds; ++kind) CHECK(duel->second_leads(kind) == (kind % 2 == 1));
}

TEST_CASE("where both are right as often, the first way is followed") {
  SomeDuel duel(4U);
  for (int i = 0; i < 1000; ++i) {
    settle(duel, i % 2 == 0, 1);
    REQUIRE_FALSE(duel->second_leads(0));
  }
}

TEST_CASE("what is nobody's victim tells nothing, and only the first use of two does") {
  SomeDuel duel(4U);
  for (int i = 0; i < 10; ++i) {
    duel->used(0);
    duel->begin(0, 0, 1);
    duel->used(2);
    duel->used(1);  // the second way was wrong
    duel->used(0);
    duel->used(0);
  }
  CHECK_FALSE(duel->second_leads(0));
}

TEST_CASE("an expert is watched beside one other, and after 32 steps beside the next") {
  SomeDuel duel(8U);
  const auto three_new = [&] {
    for (std::uint32_t e = 0; e < 3; ++e) duel->begin(0, e, 4 + e);
  };
  three_new();
  for (std::uint32_t i = 1; i < detail::Duel::span; ++i) duel->begin_step();
  for (std::uint32_t e = 0; e < 3; ++e) duel->begin(0, e, 7);  // too early
  for (std::uint32_t e = 0; e < 3; ++e) duel->begin(0, 7, e);
  for (std::uint32_t e = 0; e < 3; ++e) duel->used(e);
  CHECK(duel->second_leads(0));

  SomeDuel other(8U);
  other->begin(0, 0, 1);
  for (std::uint32_t i = 0; i < detail::Duel::span; ++i) other->begin_step();
  other->begin(0, 2, 0);
  REQUIRE(broken(*other) == "");
  other->used(1);  // not watched any more
  other->used(2);
  for (std::uint32_t e = 4; e < 6; ++e) {
    other->begin(0, e, 6);
    other->used(e);
  }
  CHECK(other->second_leads(0));  // three of three
}

TEST_CASE("over thousands of steps, against a table of pairs") {
  constexpr std::uint32_t experts = 24;
  Random random(5);
  SomeDuel duel(experts);
  struct Pair {
    std::uint32_t kind, first, second;
    int begun;
  };
  struct Score {
    double ahead = 0, count = 0;
    bool leads = false;
  };
  std::map<std::uint32_t, Pair> pairs;  // by each of both
  std::vector<Score> scores(detail::Duel::kinds);
  int changes = 0;
  const auto watched = [&](std::uint32_t e, int now) { return pairs.count(e) != 0 && now - pairs[e].begun < 32; };
  const auto drop = [&](std::uint32_t e) {
    const auto at = pairs.find(e);
    if (at == pairs.end()) return;
    const Pair p = at->second;
    pairs.erase(p.first);
    pairs.erase(p.second);
  };
  for (int step = 1; step < 10000; ++step) {
    duel->begin_step();
    for (int i = 0; i < 3; ++i) {
      const std::uint32_t first = random.below(experts), second = random.below(experts);
      const std::uint32_t kind = random.below(detail::Duel::kinds);
      if (first == second) continue;
      duel->begin(kind, first, second);
      if (watched(first, step) || watched(second, step)) continue;
      drop(first);
      drop(second);
      pairs[first] = pairs[second] = {kind, first, second, step};
    }
    std::uint32_t e = random.below(experts);
    const auto at = pairs.find(e);
    if (at != pairs.end() && random.chance(70)) {  // the second way is right more often, or the first
      e = (static_cast<std::uint32_t>(step) / 500 + at->second.kind) % 2 == 1 ? at->second.first : at->second.second;
    }
    const auto found = pairs.find(e);
    if (found != pairs.end()) {
      Score& s = scores[found->second.kind];
      s.ahead = s.ahead * (1 - 1.0 / 256) + (found->second.first == e ? 1 : -1);
      s.count = s.count * (1 - 1.0 / 256) + 1;
      const double least = s.leads ? s.count / 16 : 2 + s.count / 8;
      duel->used(e);
      const bool clear = std::abs(s.ahead - least) > 0.005;  // whole numbers round
      const bool leads = clear ? s.ahead > least : duel->second_leads(found->second.kind);
      changes += s.leads != leads ? 1 : 0;
      s.leads = leads;
      drop(e);
    } else {
      duel->used(e);
    }
    REQUIRE(broken(*duel) == "");
    for (std::uint32_t kind = 0; kind < detail::Duel::kinds; ++kind)
      REQUIRE(duel->second_leads(kind) == scores[kind].leads);
  }
  CHECK(changes > 8);
}
