#include "ferry/predictor/stacked_gates.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

std::vector<Request> predict(Placed<StackedGates>& p, Phase phase, std::uint16_t layer,
                             const std::vector<float>& rows) {
  std::vector<Request> memory(8);
  Out<Request> out{memory.data(), 8, 0};
  p->predict(phase, scores(layer, rows), out);
  memory.resize(out.size);
  return memory;
}

}  // namespace

TEST_CASE("stacked gates name the plain top k of whatever layer they are asked for") {
  Placed<StackedGates> p(Shape{8, 6, 2, 1});
  const auto near = predict(p, Phase::decode, 4, {.0F, .1F, .4F, .2F, .3F, .0F});
  CHECK(ids(near) == std::vector{2, 4});
  CHECK(near[0].want.id.layer == 4);
  CHECK(near[0].unimportance == 0.0F);
  CHECK(near[1].unimportance == .4F / (.4F + .3F));  // low precision between T1 and T2
  CHECK(near[1].confidence == .3F);
  const auto far = predict(p, Phase::decode, 6, {.3F, .3F, .1F, .3F, .0F, .0F});
  CHECK(ids(far) == std::vector{0, 1});  // ties to the lower index
  CHECK(far[0].want.id.layer == 6);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(ids(predict(p, Phase::decode, 5, {nan, nan, nan, nan, nan, .5F})) == std::vector{5});
}

TEST_CASE("stacked gates over several rows: the union, by score in decode and by votes in prefill") {
  Placed<StackedGates> p(Shape{8, 4, 2, 3});
  const std::vector<float> rows = {.4F, .3F, .2F, .1F,   // 0 1
                                   .1F, .5F, .0F, .4F,   // 1 3
                                   .0F, .1F, .9F, .0F};  // 2 1
  CHECK(ids(predict(p, Phase::decode, 1, rows)) == std::vector{2, 1, 0, 3});
  const auto votes = predict(p, Phase::prefill, 1, rows);
  CHECK(ids(votes) == std::vector{1, 2, 0, 3});
  CHECK(votes[0].rows == 3);
  CHECK(votes[0].confidence == 3.0F);
}

TEST_CASE("stacked gates look 1 to 4 layers ahead") {
  static_assert(part::depth_of(StackedGates{}) == 3);
  for (const std::uint32_t depth : {0U, 5U}) {
    StackedGates bad;
    bad.depth = depth;
    const std::string message = "StackedGates: depth is " + std::to_string(depth) + ", it must be 1 to 4";
    CHECK_THROWS_WITH_AS((Placed<StackedGates>(Shape{4, 8, 2, 1}, bad)), message.c_str(), ConfigError);
  }
  for (const std::uint32_t depth : {1U, 4U}) {
    StackedGates good;
    good.depth = depth;
    CHECK(Placed<StackedGates>(Shape{4, 8, 2, 1}, good).measured);
  }
}
