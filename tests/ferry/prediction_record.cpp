#include "ferry/prediction_record.hpp"

#include <doctest/doctest.h>

#include <new>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("a prediction counts once, for the layer and the number of rows that it was made for") {
  alignas(64) std::byte block[1024];
  auto& record = *new (block) PredictionRecord;
  Carver carve(block + 256);
  record.reserve(carve, Shape{2, 4, 1, 2});
  const std::vector<float> rows = {0, 1, 0, 0, 0, 0, 0, 1};  // best: 1, then 3
  Request named;
  named.want = full(1, 1);
  record.note(scores(1, rows), {&named, 1});

  Request asked[2];
  asked[0].want = full(1, 1);
  asked[1].want = full(1, 2);
  const Route routes[] = {{1, 1.0F}, {2, 1.0F}};
  PrefetchCounts count;
  record.score(0, {asked, 2}, {routes, 2}, count);
  CHECK(count.needed == 0);  // nothing was foretold for layer 0
  record.score(1, {asked, 2}, {routes, 2}, count);
  CHECK(count.needed == 2);
  CHECK(count.needed_foretold == 1);
  CHECK(count.rows == 2);
  CHECK(count.rows_top1 == 1);
  record.score(1, {asked, 2}, {routes, 2}, count);
  CHECK(count.needed == 2);
  record.note(scores(1, rows), {&named, 1});
  record.score(1, {asked, 1}, {routes, 1}, count);  // one row where two were foretold
  CHECK(count.needed == 2);
}
