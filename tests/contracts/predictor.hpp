/// @file
/// What concepts.hpp asks of every Predictor. Engines try theirs with it, too: contracts/own_policy/main.cpp.
#pragma once
#include <doctest/doctest.h>

#include <set>

#include "ferry/concepts.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

namespace ferry::test {

TEST_CASE_TEMPLATE_DEFINE("Predictor", P, predictor_contract) {
  constexpr std::uint16_t experts = 12;
  const Shape shape{4, experts, 3, 5};
  SUBCASE("both passes of reserve ask for the same") {
    CHECK(Placed<P>(shape).measured);
  }
  SUBCASE("requests are of the layer predicted, distinct, surest first, and need no more than E places") {
    Placed<P> predictor(shape), again(shape);
    Random random(9);
    for (int i = 0; i < 2000; ++i) {
      const Phase phase = random.chance(50) ? Phase::prefill : Phase::decode;
      const auto layer = static_cast<std::uint16_t>(random.below(4));
      const auto rows = random.scores(std::size_t{random.between(1, 5)} * experts, random.chance(30));
      Request memory[experts], other[experts];
      Out<Request> out{memory, experts, 0}, out2{other, experts, 0};
      if constexpr (part::BeginsStep<P>) {
        predictor->begin_step(StepOf(phase, 1));
        again->begin_step(StepOf(phase, 1));
      }
      Route taken[3];  // one row
      for (std::uint16_t k = 0; k < 3; ++k) taken[k] = {static_cast<std::uint16_t>(4 * k + random.below(4)), 0.25F};
      const auto before = static_cast<std::uint16_t>((layer + 3) % 4);
      predictor->observe(before, {taken, 3}, {});
      again->observe(before, {taken, 3}, {});
      REQUIRE(broken(*predictor) == "");
      if constexpr (part::EndsSequence<P>) {
        if (random.chance(5)) {
          predictor->end_sequence(0);
          again->end_sequence(0);
        }
      }
      predictor->predict(phase, scores(layer, rows), out);
      again->predict(phase, scores(layer, rows), out2);
      REQUIRE(broken(*predictor) == "");
      std::set<std::uint16_t> seen;
      REQUIRE(out.size == out2.size);
      for (std::uint32_t r = 0; r < out.size; ++r) {
        CHECK(memory[r].want.id.layer == layer);
        CHECK(memory[r].want.id.expert < experts);
        CHECK(seen.insert(memory[r].want.id.expert).second);
        CHECK(memory[r].rows >= 1);
        CHECK(memory[r].unimportance >= 0.0F);
        CHECK(memory[r].unimportance <= 1.0F);
        CHECK(memory[r].want.id == other[r].want.id);
        if (r > 0) CHECK(memory[r].confidence <= memory[r - 1].confidence);
      }
    }
  }
  SUBCASE("its own invariants hold through steps of many rows and long sequences") {
    Placed<P> predictor(shape);
    Random random(3);
    for (std::uint32_t step = 0; step < 1500; ++step) {
      const Phase phase = random.chance(20) ? Phase::prefill : Phase::decode;
      if constexpr (part::BeginsStep<P>) predictor->begin_step(StepOf(phase, 5));
      for (std::uint16_t layer = 0; layer < 4; ++layer) {
        std::vector<Route> taken;
        std::vector<std::uint32_t> which;
        for (std::uint32_t row = 0; row < 5; ++row) {
          if (random.chance(20)) continue;
          which.push_back(row);  // expert 0 is always chosen
          for (std::uint16_t k = 0; k < 3; ++k) {
            taken.push_back({static_cast<std::uint16_t>(k == 0 ? 0 : 4 * k + random.below(4)), 0.25F});
          }
          if (random.chance(10)) taken.back().instead_of = taken.back().expert;  // a substitute
          if (random.chance(10)) taken.back().expert = no_expert;
        }
        if (which.size() == 5 && random.chance(50)) which.clear();  // all of them
        predictor->observe(layer, taken, which);
        REQUIRE(broken(*predictor) == "");
        Request memory[experts];
        Out<Request> out{memory, experts, 0};
        const auto ahead = random.scores(std::size_t{random.between(1, 5)} * experts, random.chance(30));
        predictor->predict(phase, scores(static_cast<std::uint16_t>((layer + 1) % 4), ahead), out);
        REQUIRE(broken(*predictor) == "");
      }
      if constexpr (part::EndsSequence<P>) {
        if (step % 300 > 200 && random.chance(30)) predictor->end_sequence(0);
        REQUIRE(broken(*predictor) == "");
      }
    }
  }
  SUBCASE("a buffer that is too small is filled, not overrun") {
    Placed<P> predictor(shape);
    Random random(1);
    const auto rows = random.scores(experts);
    Request memory[3];
    memory[2].rows = 77;
    Out<Request> out{memory, 2, 0};
    predictor->predict(Phase::prefill, scores(0, rows), out);
    CHECK(out.size <= 2);
    CHECK(memory[2].rows == 77);
  }
}

}  // namespace ferry::test
