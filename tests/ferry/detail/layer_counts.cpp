#include "ferry/detail/layer_counts.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct CountsFixture {
  explicit CountsFixture(const ModelShape& shape) {
    Carver measure;
    counts.reserve(measure, shape);
    bytes = measure.bytes();
    Carver carve(block);
    counts.reserve(carve, shape);
  }
  alignas(64) std::byte block[256] = {};
  std::size_t bytes = 0;
  detail::LayerCounts counts;
};

}  // namespace

TEST_CASE("layers that do not differ: scores say nothing of them, and nothing is kept") {
  const CountsFixture f(model(3, 8, 2));
  const std::vector<float> s(8);
  CHECK(f.counts.experts(2) == 8);
  CHECK(f.counts.of(scores(2, s)).layer_experts == 0);
  CHECK(f.counts.of(scores(2, s)).layer_top_k == 0);
  Scores filled = scores(2, s);
  filled.layer_experts = 64;  // more than there are: what a caller writes there is not believed
  filled.layer_top_k = 5;
  CHECK(f.counts.of(filled).layer_experts == 0);
  CHECK(f.counts.of(filled).layer_top_k == 0);
  CHECK(f.bytes == 0);
}

TEST_CASE("layers that differ: scores say what their layer has") {
  ModelShape shape = model(3, 8, 4);
  shape.layer_experts = {8, 4, 6};
  shape.layer_top_k = {2, 3, 4};
  const CountsFixture f(shape);
  const std::vector<float> s(8);
  for (std::uint16_t l = 0; l < 3; ++l) {
    CHECK(f.counts.experts(l) == shape.layer_experts[l]);
    const Scores said = f.counts.of(scores(l, s));
    CHECK(said.layer_experts == shape.layer_experts[l]);
    CHECK(said.layer_top_k == shape.layer_top_k[l]);
    CHECK(said.select.data == s.data());
  }
  shape.layer_experts.clear();
  const CountsFixture g(shape);
  CHECK(g.counts.experts(1) == 8);
  CHECK(g.counts.of(scores(1, s)).layer_experts == 0);
  CHECK(g.counts.of(scores(1, s)).layer_top_k == 3);
}
