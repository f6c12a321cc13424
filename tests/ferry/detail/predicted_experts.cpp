#include "ferry/detail/predicted_experts.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

const float quiet_nan = std::numeric_limits<float>::quiet_NaN();

std::vector<Request> written(detail::PredictedExperts& predicted, Phase phase, std::uint32_t capacity = 8) {
  std::vector<Request> memory(capacity);
  Out<Request> out{memory.data(), capacity, 0};
  predicted.write(phase, 3, out);
  memory.resize(out.size);
  return memory;
}

/// What one row, or several, name with their `count` best.
std::vector<Request> best(const Shape& shape, const std::vector<float>& rows, std::uint32_t count,
                          Phase phase = Phase::decode) {
  Placed<detail::PredictedExperts> predicted(shape);
  predicted->clear();
  predicted->name_best(scores(3, rows), count);
  return written(*predicted, phase);
}

}  // namespace

TEST_CASE("unimportance is the share of the k best that goes to those ranked above") {
  // Best first: 1 (.5), 3 (.25), 0 (.125), 2 (.0625), 4. The two best sum to .75, the three best to .875.
  const std::vector<float> row = {.125F, .5F, .0625F, .25F, 0};
  const auto k2 = best(Shape{4, 5, 2, 1}, row, 4);
  REQUIRE(k2.size() == 4);
  CHECK(k2[0].want.id == ExpertId{3, 1});
  CHECK(k2[1].want.id == ExpertId{3, 3});
  CHECK(k2[2].want.id == ExpertId{3, 0});
  CHECK(k2[3].want.id == ExpertId{3, 2});
  CHECK(k2[0].unimportance == 0.0F);
  CHECK(k2[1].unimportance == .5F / .75F);
  CHECK(k2[2].unimportance == 1.0F);  // behind the k best
  CHECK(k2[3].unimportance == 1.0F);
  const auto k3 = best(Shape{4, 5, 3, 1}, row, 3);
  REQUIRE(k3.size() == 3);
  CHECK(k3[0].unimportance == 0.0F);
  CHECK(k3[1].unimportance == .5F / .875F);
  CHECK(k3[2].unimportance == .75F / .875F);
  CHECK(k3[2].importance == .125F);
  // Fewer than k are named: still a share of the k best.
  const auto fewer = best(Shape{4, 5, 3, 1}, row, 2);
  REQUIRE(fewer.size() == 2);
  CHECK(fewer[1].unimportance == .5F / .875F);
}

TEST_CASE("of several rows the smallest unimportance, the largest weight and score, and every vote count") {
  const auto r = best(Shape{4, 3, 2, 2},
                      {.5F, .25F, 0,      // 0, then 1 with .5 / .75
                       0, .375F, .625F},  // 2, then 1 with .625 / 1
                      2);
  REQUIRE(r.size() == 3);
  CHECK(r[0].want.id.expert == 2);
  CHECK(r[0].confidence == .625F);
  CHECK(r[1].want.id.expert == 0);
  CHECK(r[2].want.id.expert == 1);
  CHECK(r[2].rows == 2);
  CHECK(r[2].confidence == .375F);
  CHECK(r[2].importance == .375F);
  CHECK(r[2].unimportance == .625F);
}

TEST_CASE("the largest score of an expert counts, whichever row gives it") {
  const std::vector<float> first = {.875F, .125F, 0, .25F, .75F, 0}, second = {.25F, .75F, 0, .875F, .125F, 0};
  for (const std::vector<float>& rows : {first, second}) {
    const auto r = best(Shape{4, 3, 2, 2}, rows, 2);
    REQUIRE(r.size() == 2);
    CHECK(r[0].want.id.expert == 0);
    CHECK(r[0].confidence == .875F);
    CHECK(r[1].want.id.expert == 1);
    CHECK(r[1].confidence == .75F);
    CHECK(r[0].rows == 2);
  }
}

TEST_CASE("in prefill votes come before scores, and both before the index") {
  // Votes: 1 twice, the others once. Scores of those: 0 and 2 tie at .5, 3 has .75.
  const auto r = best(Shape{4, 4, 2, 3},
                      {.5F, .375F, 0, 0,  //
                       0, .25F, .5F, 0,   //
                       quiet_nan, quiet_nan, quiet_nan, .75F},
                      2, Phase::prefill);
  REQUIRE(r.size() == 4);
  CHECK(r[0].want.id.expert == 1);
  CHECK(r[0].confidence == 2.0F);
  CHECK(r[0].unimportance == .5F / .875F);  // the second row's is .5 / .75
  CHECK(r[1].want.id.expert == 3);
  CHECK(r[1].confidence == 1.0F);
  CHECK(r[2].want.id.expert == 0);
  CHECK(r[3].want.id.expert == 2);
}

TEST_CASE("select chooses, weight gives importance and shares") {
  // By select 1, 0, 2; of these the weights rank 2 (.5), 0 (.3), 1 (.2): in all 1.
  const std::vector<float> select = {2, 3, 1, -1}, weight = {.3F, .2F, .5F, 9};
  Placed<detail::PredictedExperts> predicted(Shape{4, 4, 3, 1});
  predicted->clear();
  predicted->name_best({3, {select.data(), 4}, {weight.data(), 4}}, 3);
  const auto r = written(*predicted, Phase::decode);
  REQUIRE(r.size() == 3);
  CHECK(r[0].want.id.expert == 1);
  CHECK(r[0].confidence == 3.0F);
  CHECK(r[0].importance == .2F);
  CHECK(r[0].unimportance == doctest::Approx(.8));
  CHECK(r[1].unimportance == doctest::Approx(.5));
  CHECK(r[2].unimportance == 0.0F);
  const std::vector<float> tie = {.375F, .25F, .375F, 9};  // the better score goes first
  predicted->clear();
  predicted->name_best({3, {select.data(), 4}, {tie.data(), 4}}, 3);
  const auto t = written(*predicted, Phase::decode);
  CHECK(t[0].unimportance == .75F);
  CHECK(t[1].unimportance == 0.0F);
  CHECK(t[2].unimportance == .375F);
}

TEST_CASE("a NaN score names nothing, and shares that are none count as important") {
  const auto some = best(Shape{4, 4, 3, 1}, {quiet_nan, .25F, quiet_nan, .75F}, 3);
  REQUIRE(some.size() == 2);
  CHECK(some[0].want.id.expert == 3);
  CHECK(some[1].want.id.expert == 1);
  CHECK(some[1].unimportance == .75F);  // of .75 + .25
  CHECK(best(Shape{4, 4, 3, 1}, {quiet_nan, quiet_nan, quiet_nan, quiet_nan}, 3).empty());
  const auto zero = best(Shape{4, 4, 3, 1}, {0, 0, 0, 0}, 4);
  REQUIRE(zero.size() == 4);
  CHECK(zero[0].unimportance == 0.0F);
  CHECK(zero[2].unimportance == 0.0F);
  CHECK(zero[3].unimportance == 1.0F);  // behind the k best all the same
}

TEST_CASE("a row names no more than it is told to, and nothing is kept from the layer before") {
  Placed<detail::PredictedExperts> predicted(Shape{4, 4, 2, 1});
  const std::vector<float> row = {.1F, .2F, .3F, .4F};
  predicted->clear();
  const View<const Route> ranked = predicted->rank(scores(3, row), 0, 3);
  REQUIRE(ranked.size == 3);
  CHECK(ranked[0].expert == 3);
  CHECK(ranked[2].expert == 1);
  predicted->name(scores(3, row), 0, 1);
  CHECK(written(*predicted, Phase::decode).size() == 1);
  CHECK(written(*predicted, Phase::decode, 0).empty());
  predicted->clear();
  CHECK(written(*predicted, Phase::decode).empty());
  predicted->name_best(scores(3, row), 1);
  CHECK(written(*predicted, Phase::decode)[0].rows == 1);
}
