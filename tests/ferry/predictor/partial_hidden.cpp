#include "ferry/predictor/partial_hidden.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "support/policies.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

std::vector<Request> predict(Placed<PartialHidden>& p, Phase phase, const Scores& rows) {
  std::vector<Request> memory(8);
  Out<Request> out{memory.data(), 8, 0};
  p->predict(phase, rows, out);
  memory.resize(out.size);
  return memory;
}

Placed<PartialHidden> with(float alpha, const Shape& shape) {
  PartialHidden p;
  p.alpha = alpha;
  return Placed<PartialHidden>(shape, p);
}

const float quiet_nan = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("decode: only the predicted top-score experts, best first") {
  // k = 3. Best first: 4 (.375), 1 (.25), 0 (.1875), 5 (.125): beta = .125.
  const std::vector<float> row = {.1875F, .25F, 0, .0625F, .375F, .125F};
  const Shape shape{4, 6, 3, 1};
  auto half = with(.5F, shape);  // above .1875: .1875 itself is not
  const auto r = predict(half, Phase::decode, scores(2, row));
  CHECK(ids(r) == std::vector{4, 1});
  CHECK(r[0].want.id.layer == 2);
  CHECK(r[0].confidence == .375F);
  CHECK(r[0].rows == 1);
  CHECK(r[1].importance == .25F);
  CHECK(r[1].unimportance == .375F / .8125F);  // of .375 + .25 + .1875
  auto quarter = with(.25F, shape);            // above .15625
  CHECK(ids(predict(quarter, Phase::decode, scores(2, row))) == std::vector{4, 1, 0});
  auto most = with(1, shape);  // above .25: .25 itself is not
  CHECK(ids(predict(most, Phase::decode, scores(2, row))) == std::vector{4});
}

TEST_CASE("decode: never more than k, however many lie above the bar, and ties with the (k+1)-th are low-score") {
  auto p = with(0, Shape{4, 5, 2, 1});
  CHECK(ids(predict(p, Phase::decode, scores(2, {.2F, .4F, .1F, .3F, 0}))) == std::vector{1, 3});
  CHECK(ids(predict(p, Phase::decode, scores(2, {.2F, .4F, .2F, .2F, 0}))) == std::vector{1});
  CHECK(predict(p, Phase::decode, scores(2, {.2F, .2F, .2F, .2F, .2F})).empty());
  auto half = with(.5F, Shape{4, 5, 2, 1});  // the bar of logits is -3 * 1.5, below all of them
  CHECK(ids(predict(half, Phase::decode, scores(2, {-4, -2, -3, -1, -4}))) == std::vector{3, 1});
}

TEST_CASE("decode: without a (k+1)-th score all of the k are top-score, NaN is none") {
  auto all = with(1, Shape{4, 3, 3, 1});
  CHECK(ids(predict(all, Phase::decode, scores(2, {.3F, .3F, .4F}))) == std::vector{2, 0, 1});
  CHECK(ids(predict(all, Phase::decode, scores(2, {.3F, quiet_nan, .4F}))) == std::vector{2, 0});
  auto two = with(1, Shape{4, 4, 2, 1});
  CHECK(ids(predict(two, Phase::decode, scores(2, {.3F, quiet_nan, .4F, quiet_nan}))) == std::vector{2, 0});
  CHECK(ids(predict(two, Phase::decode, scores(2, {quiet_nan, quiet_nan, .4F, quiet_nan}))) == std::vector{2});
}

TEST_CASE("decode of a batch: each row has its own bar, and the best of all rows come first") {
  // k = 1, alpha = 1: a row's best must be above twice its second.
  auto p = with(1, Shape{4, 3, 1, 3});
  CHECK(ids(predict(p, Phase::decode,
                    scores(2, {.5F, .2F, .2F,  //
                               .1F, .2F, .4F,  // exactly twice
                               .1F, .8F, .1F}))) == std::vector{1, 0});
}

TEST_CASE("prefill: every expert of the next layer in index order, without rows") {
  static_assert(part::rows_of<PartialHidden>(Phase::prefill) == RowSource::none);
  static_assert(part::rows_of<PartialHidden>(Phase::decode) == RowSource::partial_hidden);
  Placed<PartialHidden> p(Shape{4, 5, 2, 6});
  const auto r = predict(p, Phase::prefill, {3, {}, {}});
  CHECK(ids(r) == std::vector{0, 1, 2, 3, 4});
  for (const Request& q : r) {
    CHECK(q.want.id.layer == 3);
    CHECK(q.rows == 1);
    CHECK(q.confidence == r[0].confidence);
  }
}

TEST_CASE("an alpha that is none is refused by PartialHidden") {
  CHECK_THROWS_WITH_AS(with(-.5F, Shape{4, 8, 3, 1}), "PartialHidden: alpha is -0.500000, it must be 0 to 1",
                       ConfigError);
  CHECK_THROWS_AS(with(1.5F, Shape{4, 8, 3, 1}), ConfigError);
  CHECK_THROWS_AS(with(quiet_nan, Shape{4, 8, 3, 1}), ConfigError);
}
