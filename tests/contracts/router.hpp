/// @file
/// What concepts.hpp asks of every ExpertRouter. Engines try theirs with it, too: contracts/own_policy/main.cpp.
#pragma once
#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "ferry/concepts.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

namespace ferry::test {

TEST_CASE_TEMPLATE_DEFINE("ExpertRouter", R, router_contract) {
  constexpr std::uint16_t experts = 9, k = 4;
  Placed<R> router(Shape{2, experts, k, 5});
  Random random(4);
  for (int i = 0; i < 2000; ++i) {
    const std::uint32_t rows = random.between(1, 5);
    auto s = random.scores(std::size_t{rows} * experts, random.chance(40));
    if (random.chance(10)) s[random.below(experts)] = std::numeric_limits<float>::quiet_NaN();
    State present[experts];
    for (State& p : present) p = static_cast<State>(random.below(4));
    std::vector<Route> memory(std::size_t{rows} * k);
    Out<Route> out{memory.data(), rows * k, 0};
    router->route(random.chance(50) ? Phase::prefill : Phase::decode, scores(0, s), {present, experts}, out);
    REQUIRE(out.size == rows * k);  // always exactly k a row
    REQUIRE(broken(*router) == "");
    for (std::uint32_t row = 0; row < rows; ++row) {
      std::set<std::uint16_t> distinct;
      std::uint32_t left_out = 0;
      for (std::uint32_t j = 0; j < k; ++j) {
        const Route& r = memory[row * k + j];
        if (part::skips<R>() && r.expert == no_expert) {
          CHECK(r.instead_of < experts);
          CHECK(r.weight == 0.0F);
          ++left_out;
          continue;
        }
        CHECK(r.expert < experts);
        distinct.insert(r.expert);
      }
      CHECK(distinct.size() + left_out == k);
      CHECK_FALSE(distinct.empty());
      std::set<std::uint16_t> replaced;  // none twice, and only the gate's own choices
      for (std::uint32_t j = 0; j < k; ++j) {
        const Route& r = memory[row * k + j];
        if (r.instead_of == no_expert) continue;
        CHECK((part::substitutes<R>() || part::skips<R>()));
        CHECK(replaced.insert(r.instead_of).second);
        CHECK(distinct.count(r.instead_of) == 0);
      }
    }
  }
}

}  // namespace ferry::test
