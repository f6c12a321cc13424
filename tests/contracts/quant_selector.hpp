/// @file
/// What concepts.hpp asks of every QuantSelector. Engines try theirs with it, too: contracts/own_policy/main.cpp.
#pragma once
#include <doctest/doctest.h>

#include "ferry/concepts.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"

namespace ferry::test {

/// A selector, in its own block if it keeps state.
template <class Q>
class Selector {
 public:
  Q& operator*() {
    if constexpr (part::ReservesForModel<Q>) {
      return *placed_;
    } else {
      return placed_;
    }
  }

 private:
  static auto make() {
    if constexpr (part::ReservesForModel<Q>) {
      return Placed<Q>(Shape{2, 8, 2, 5});
    } else {
      return Q{};
    }
  }
  decltype(make()) placed_ = make();
};

TEST_CASE_TEMPLATE_DEFINE("QuantSelector", Q, quant_selector_contract) {
  Selector<Q> placed;
  Q& selector = *placed;
  Random random(6);
  for (int i = 0; i < 2000; ++i) {
    Request r[8], again[8];
    for (std::uint16_t e = 0; e < 8; ++e) {
      r[e].want.id = {1, e};
      r[e].state = static_cast<State>(random.below(4));
      r[e].held = r[e].state == State::absent ? Precision::skip : static_cast<Precision>(random.between(1, 4));
      r[e].importance = random.unit();
      r[e].unimportance = random.unit();
      r[e].rows = random.between(1, 5);
      again[e] = r[e];
    }
    const Phase phase = random.chance(50) ? Phase::prefill : Phase::decode;
    const bool demand = random.chance(50);
    selector.select(phase, demand, {r, 8});
    selector.select(phase, demand, {again, 8});
    for (std::uint16_t e = 0; e < 8; ++e) {
      CHECK(r[e].want.id == ExpertId{1, e});
      CHECK((selector.precisions() >> static_cast<unsigned>(r[e].want.precision) & 1U) == 1);
      CHECK(again[e].want == r[e].want);
    }
    REQUIRE(broken(selector) == "");
  }
}

}  // namespace ferry::test
