#include "ferry/predictor/every_expert.hpp"

#include <doctest/doctest.h>

#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("every expert of the layer is predicted in index order, without rows, in both phases") {
  static_assert(part::rows_of<EveryExpert>(Phase::prefill) == RowSource::none);
  static_assert(part::rows_of<EveryExpert>(Phase::decode) == RowSource::none);
  Placed<EveryExpert> p(Shape{4, 5, 2, 1});
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    Request memory[5];
    Out<Request> out{memory, 5, 0};
    p->predict(phase, {2, {}, {}}, out);
    REQUIRE(out.size == 5);
    for (std::uint16_t e = 0; e < 5; ++e) {
      CHECK(memory[e].want.id == ExpertId{2, e});
      CHECK(memory[e].rows == 1);
      CHECK(memory[e].confidence == 1.0F);
      CHECK(memory[e].unimportance == 0.0F);
    }
  }
}

TEST_CASE("of a layer with fewer experts than others, those that it has") {
  Placed<EveryExpert> p(Shape{4, 5, 2, 1});
  Request memory[5];
  Out<Request> out{memory, 5, 0};
  Scores of_layer{3, {}, {}};
  of_layer.layer_experts = 2;
  p->predict(Phase::decode, of_layer, out);
  REQUIRE(out.size == 2);
  CHECK(memory[0].want.id == ExpertId{3, 0});
  CHECK(memory[1].want.id == ExpertId{3, 1});
}
