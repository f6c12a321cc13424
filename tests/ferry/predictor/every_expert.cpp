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
