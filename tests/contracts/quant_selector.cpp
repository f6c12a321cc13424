// What concepts.hpp asks of every QuantSelector. A new policy is registered in the list at the end.
#include <doctest/doctest.h>

#include "ferry/precision/fixed.hpp"
#include "support/random.hpp"
#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE_TEMPLATE_DEFINE("QuantSelector", Q, quant_selector_contract) {
  const Q selector{};
  Random random(6);
  for (int i = 0; i < 2000; ++i) {
    Request r[8];
    for (std::uint16_t e = 0; e < 8; ++e) {
      r[e].want.id = {1, e};
      r[e].state = static_cast<State>(random.below(4));
      r[e].importance = random.unit();
      r[e].rows = random.between(1, 5);
    }
    const Phase phase = random.chance(50) ? Phase::prefill : Phase::decode;
    selector.select(phase, random.chance(50), {r, 8});
    for (std::uint16_t e = 0; e < 8; ++e) {
      CHECK(r[e].want.id == ExpertId{1, e});
      CHECK((selector.precisions() >> static_cast<unsigned>(r[e].want.precision) & 1U) == 1);
      // shrinks and skips only what would have to be fetched
      if (r[e].state == State::resident) CHECK(r[e].want.precision == Precision::full);
    }
  }
}

TEST_CASE_TEMPLATE_INVOKE(quant_selector_contract, FixedPrecision, MixedPrecision);
