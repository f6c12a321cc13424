#include "ferry/detail/prediction_record.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <new>
#include <vector>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

const Array<std::uint16_t> no_best;

struct RecordFixture {
  RecordFixture(const Shape& shape, std::uint16_t depth) {
    Carver carve(block + 256);
    record.reserve(carve, shape, depth);
  }
  alignas(64) std::byte block[2048];
  detail::PredictionRecord& record = *new (block) detail::PredictionRecord;
};

Request named(std::uint16_t layer, std::uint16_t expert) {
  Request r;
  r.want = full(layer, expert);
  return r;
}

}  // namespace

TEST_CASE("a prediction counts once, for the layer and the number of rows that it was made for") {
  RecordFixture f(Shape{2, 4, 1, 2}, 1);
  const std::vector<float> rows = {0, 1, 0, 0, 0, 0, 0, 1};  // best: 1, then 3
  const Request predicted = named(1, 1);
  f.record.note(scores(1, rows), 1, {&predicted, 1});
  const Route routes[] = {{1, 1.0F}, {2, 1.0F}};
  PrefetchCounts count;
  f.record.score(0, {routes, 2}, {}, 2, no_best, count);
  CHECK(count.accuracy.needed == 0);  // nothing was predicted for layer 0
  f.record.score(1, {routes, 2}, {}, 2, no_best, count);
  CHECK(count.accuracy.needed == 2);
  CHECK(count.accuracy.predicted == 1);
  CHECK(count.accuracy.rows == 2);
  CHECK(count.accuracy.rows_top1 == 1);
  CHECK(count.accuracy.recall() == 0.5);
  CHECK(count.accuracy.top1() == 0.5);
  f.record.score(1, {routes, 2}, {}, 2, no_best, count);
  CHECK(count.accuracy.needed == 2);
  f.record.note(scores(1, rows), 1, {&predicted, 1});
  f.record.score(1, {routes, 1}, {}, 1, no_best, count);  // one row where two were predicted
  CHECK(count.accuracy.needed == 2);
}

TEST_CASE("predictions of one layer from several distances are counted apart, the nearest in the sum") {
  RecordFixture f(Shape{4, 4, 2, 1}, 3);
  const Request one[] = {named(3, 0), named(3, 1)}, two[] = {named(3, 2), named(3, 3)};
  const std::vector<float> likes0 = {1, 0, 0, 0}, likes2 = {0, 0, 1, 0};
  f.record.note(scores(3, likes2), 3, {two, 2});  // from layer 0: wrong
  f.record.note(scores(3, likes0), 1, {one, 2});  // from layer 2: one of two
  f.record.note(scores(3, likes0), 4, {two, 2});  // deeper than is kept: ignored
  const Route routes[] = {{0, 0.5F}, {2, 0.5F}};
  PrefetchCounts count;
  f.record.score(3, {routes, 2}, {}, 1, no_best, count);
  CHECK(count.accuracy.needed == 2);
  CHECK(count.accuracy.predicted == 1);
  CHECK(count.accuracy.rows_top1 == 1);
  CHECK(f.record.accuracy(1, 3).predicted == 1);
  CHECK(f.record.accuracy(1, 3).rows_top1 == 1);
  CHECK(f.record.accuracy(2, 3).needed == 0);
  CHECK(f.record.accuracy(3, 3).needed == 2);
  CHECK(f.record.accuracy(3, 3).predicted == 1);
  CHECK(f.record.accuracy(3, 3).rows_top1 == 0);
}

TEST_CASE("with more layers than the depth, each layer and distance still has its own record") {
  RecordFixture f(Shape{3, 4, 1, 1}, 2);
  const std::vector<float> likes1 = {0, 1, 0, 0};
  const Request predicted = named(2, 1);
  f.record.note(scores(2, likes1), 1, {&predicted, 1});
  const Route route{1, 1.0F};
  PrefetchCounts count;
  f.record.score(0, {&route, 1}, {}, 1, no_best, count);  // nothing was predicted for layer 0, from any distance
  CHECK(count.accuracy.needed == 0);
  f.record.score(2, {&route, 1}, {}, 1, no_best, count);
  for (std::uint16_t distance = 1; distance <= 2; ++distance) {
    for (std::uint16_t layer = 0; layer < 3; ++layer) {
      CHECK(f.record.accuracy(distance, layer).needed == (distance == 1 && layer == 2 ? 1 : 0));
    }
  }
}

TEST_CASE("a prediction without rows counts in recall, not in top-1, and substitutes stand for the gate's choice") {
  RecordFixture f(Shape{2, 4, 1, 2}, 1);
  const Request predicted = named(1, 3);
  f.record.note(Scores{1, {}, {}}, 1, {&predicted, 1});
  const Route routes[] = {{0, 1.0F, 3}, {0, 1.0F}};  // the gate chose 3 and 0
  PrefetchCounts count;
  f.record.score(1, {routes, 2}, {}, 2, no_best, count);
  CHECK(count.accuracy.needed == 2);
  CHECK(count.accuracy.predicted == 1);
  CHECK(count.accuracy.rows == 0);
}

TEST_CASE("what was predicted for an abandoned step is forgotten") {
  RecordFixture f(Shape{2, 4, 1, 2}, 1);
  const Request predicted = named(1, 3);
  f.record.note(Scores{1, {}, {}}, 1, {&predicted, 1});
  f.record.clear();
  const Route route{3, 1.0F};
  PrefetchCounts count;
  f.record.score(1, {&route, 1}, {}, 1, no_best, count);
  CHECK(count.accuracy.needed == 0);
}

TEST_CASE("where the first routes are substitutes, top-1 is held against the gate's first choices") {
  struct Block {
    detail::PredictionRecord record;
    Array<std::uint16_t> best;
    alignas(64) std::byte rest[2048];
  };
  auto block = std::make_unique<Block>();
  Carver carve(block->rest);
  block->record.reserve(carve, Shape{2, 4, 1, 1}, 1);
  carve(block->best, 1, std::uint16_t{2});
  const std::vector<float> likes2 = {0, 0, 1, 0};
  block->record.note(scores(1, likes2), 1, {});
  const Route route{3, 1.0F, 2};
  PrefetchCounts count;
  block->record.score(1, {&route, 1}, {}, 1, block->best, count);
  CHECK(count.accuracy.rows_top1 == 1);
}

TEST_CASE("a layer with some of the step's rows is compared with what was predicted for those") {
  RecordFixture f(Shape{2, 4, 1, 3}, 1);
  const std::vector<float> rows = {0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0};  // best: 1, 3, 0
  const Request predicted[] = {named(1, 1), named(1, 3)};
  f.record.note(scores(1, rows), 1, predicted);
  const Route routes[] = {{3, 1.0F}, {2, 1.0F}};
  const std::uint32_t present[] = {1, 2};
  PrefetchCounts count;
  f.record.score(1, routes, present, 3, no_best, count);
  CHECK(count.accuracy.needed == 2);
  CHECK(count.accuracy.predicted == 1);
  CHECK(count.accuracy.rows == 2);
  CHECK(count.accuracy.rows_top1 == 1);  // row 1 wanted 3, as predicted; row 2 wanted 2, and 0 was predicted
}

TEST_CASE("a prediction of the same some rows is compared row by row, one of other numbers is ignored") {
  const std::vector<float> rows = {0, 1, 0, 0, 0, 0, 0, 1};  // best: 1, 3
  const Request predicted = named(1, 1);
  const Route routes[] = {{1, 1.0F}, {2, 1.0F}};
  const std::uint32_t present[] = {1, 2}, three[] = {0, 1, 2};
  PrefetchCounts same, other;
  RecordFixture f(Shape{2, 4, 1, 4}, 1);
  f.record.note(scores(1, rows), 1, {&predicted, 1});  // by an earlier layer that had rows 1 and 2, too
  f.record.score(1, routes, present, 4, no_best, same);
  CHECK(same.accuracy.rows == 2);
  CHECK(same.accuracy.rows_top1 == 1);
  CHECK(same.accuracy.predicted == 1);
  const Route more[] = {{1, 1.0F}, {2, 1.0F}, {3, 1.0F}};
  f.record.note(scores(1, rows), 1, {&predicted, 1});
  f.record.score(1, more, three, 4, no_best, other);
  CHECK(other.accuracy.needed == 0);
}

TEST_CASE("experts that no layer has are not remembered") {
  RecordFixture f(Shape{2, 4, 1, 1}, 1);
  const std::vector<float> row = {0, 1, 0, 0};
  const Request first = named(1, 0);
  const Request beyond[] = {named(0, 4), named(0, 65), named(0, no_expert), named(0, 2)};
  f.record.note(scores(1, row), 1, {&first, 1});
  f.record.note(scores(0, row), 1, {beyond, 4});  // 65 would be the other layer's 1
  const Route routes[] = {{1, 1.0F}, {2, 1.0F}};
  PrefetchCounts count;
  f.record.score(1, {routes, 1}, {}, 1, no_best, count);
  CHECK(count.accuracy.needed == 1);
  CHECK(count.accuracy.predicted == 0);
  f.record.score(0, {routes + 1, 1}, {}, 1, no_best, count);
  CHECK(count.accuracy.predicted == 1);
}
