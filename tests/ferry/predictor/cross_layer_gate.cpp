#include "ferry/predictor/cross_layer_gate.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

std::vector<Request> predict(Placed<CrossLayerGate>& p, Phase phase, const std::vector<float>& rows,
                             std::uint16_t experts) {
  std::vector<Request> memory(experts);
  Out<Request> out{memory.data(), experts, 0};
  p->predict(phase, scores(3, rows), out);
  memory.resize(out.size);
  return memory;
}

}  // namespace

TEST_CASE("how many experts lie above the 75th percentile, as numpy's percentile counts them") {
  // numpy.percentile(range(E), 75) by hand: position 0.75 (E - 1). E - 1 - floor of that lie strictly above it.
  const std::pair<std::uint16_t, std::size_t> counts[] = {{8, 2}, {32, 8}, {60, 15}, {64, 16}, {5, 1}, {16, 4}};
  for (const auto& count : counts) {
    const std::uint16_t experts = count.first;
    CAPTURE(experts);
    Placed<CrossLayerGate> p(Shape{4, experts, 2, 1});
    std::vector<float> s(experts);
    for (std::uint16_t e = 0; e < experts; ++e) s[(e * 7) % experts] = static_cast<float>(e);
    CHECK(predict(p, Phase::decode, s, experts).size() == count.second);
  }
}

TEST_CASE("of a layer with fewer experts, a quarter of those that it has") {
  Placed<CrossLayerGate> p(Shape{4, 16, 4, 1});
  std::vector<Request> memory(16);
  Out<Request> out{memory.data(), 16, 0};
  std::vector<float> row(16, 9.0F);
  for (std::size_t e = 0; e < 8; ++e) row[e] = static_cast<float>(e) / 10;
  Scores s = scores(3, row);
  s.layer_experts = 8;
  s.layer_top_k = 3;
  p->predict(Phase::decode, s, out);
  memory.resize(out.size);
  CHECK(ids(memory) == std::vector{7, 6});
  memory.resize(16);
  out.size = 0;
  p->predict(Phase::prefill, s, out);  // the top k
  memory.resize(out.size);
  CHECK(ids(memory) == std::vector{7, 6, 5});
}

TEST_CASE("decode: surest first, ties to the lower index, NaN predicts nothing") {
  Placed<CrossLayerGate> p(Shape{4, 8, 2, 2});
  CHECK(ids(predict(p, Phase::decode, {.1F, .4F, .0F, .0F, .0F, .3F, .2F, .0F}, 8)) == std::vector{1, 5});
  CHECK(ids(predict(p, Phase::decode, {.2F, .2F, .2F, .0F, .0F, .0F, .0F, .0F}, 8)) == std::vector{0, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(ids(predict(p, Phase::decode, {nan, nan, nan, .1F, nan, nan, nan, nan}, 8)) == std::vector{3});
  const auto r = predict(p, Phase::decode, {.1F, .4F, .0F, .0F, .0F, .3F, .2F, .0F}, 8);
  CHECK(r[0].want.id.layer == 3);
  CHECK(r[0].confidence == .4F);
  CHECK(r[0].rows == 1);
}

TEST_CASE("decode of a batch: a candidate of any row counts") {
  Placed<CrossLayerGate> p(Shape{4, 8, 2, 2});
  CHECK(ids(predict(p, Phase::decode,
                    {.5F, .4F, 0, 0, 0, 0, 0, 0,  //
                     0, .6F, 0, 0, 0, 0, 0, .1F},
                    8)) == std::vector{1, 0, 7});
}

TEST_CASE("candidates above the percentile: those behind the top k are unimportant") {
  // k = 1, E = 12: 12 - 1 - floor(8.25) = 3 candidates. k = 4: the share is of the four best, .9375 together.
  const std::vector<float> row = {0, .5F, 0, .25F, 0, .125F, 0, .0625F, 0, 0, 0, 0};
  Placed<CrossLayerGate> one(Shape{4, 12, 1, 1}), four(Shape{4, 12, 4, 1});
  const auto a = predict(one, Phase::decode, row, 12), b = predict(four, Phase::decode, row, 12);
  REQUIRE(ids(a) == std::vector{1, 3, 5});
  REQUIRE(ids(b) == std::vector{1, 3, 5});
  CHECK(a[0].unimportance == 0.0F);
  CHECK(a[1].unimportance == 1.0F);
  CHECK(a[2].unimportance == 1.0F);
  CHECK(b[0].unimportance == 0.0F);
  CHECK(b[1].unimportance == .5F / .9375F);
  CHECK(b[2].unimportance == .75F / .9375F);
  CHECK(b[2].importance == .125F);
}

TEST_CASE("plain top-k instead of the percentile") {
  CrossLayerGate plain;
  plain.plain_top_k = true;
  Placed<CrossLayerGate> p(Shape{4, 8, 3, 1}, plain);
  CHECK(ids(predict(p, Phase::decode, {.1F, .4F, .0F, .0F, .0F, .3F, .2F, .0F}, 8)) == std::vector{1, 5, 6});
}

TEST_CASE("prefill: each row votes for its top k, most votes first") {
  Placed<CrossLayerGate> p(Shape{4, 4, 2, 3});
  const auto r = predict(p, Phase::prefill,
                         {.4F, .3F, .2F, .1F,   // 0 1
                          .1F, .5F, .0F, .4F,   // 1 3
                          .0F, .9F, .1F, .0F},  // 1 2
                         4);
  CHECK(ids(r) == std::vector{1, 0, 3, 2});
  CHECK(r[0].rows == 3);
  CHECK(r[0].confidence == 3.0F);
}

TEST_CASE("a percentile that is none is refused") {
  CrossLayerGate bad;
  bad.percentile = 101;
  CHECK_THROWS_WITH_AS((Placed<CrossLayerGate>(Shape{4, 8, 3, 1}, bad)),
                       "CrossLayerGate: percentile is 101, expected 0 to 100", ConfigError);
}
