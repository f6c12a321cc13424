#include "ferry/router/top_k.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

std::vector<Route> route(std::uint16_t experts, std::uint16_t k, const Scores& s,
                         Renormalise renormalise = Renormalise::no, float least_sum = 0, float added_to_sum = 0) {
  TopK router;
  Carver carve;
  router.reserve(carve, Shape{1, experts, k, 8, renormalise, 1, least_sum, added_to_sum});
  std::vector<Route> memory(s.select.size / experts * k, Route{77, 7.0F, 7});  // what an earlier step left there
  Out<Route> out{memory.data(), static_cast<std::uint32_t>(memory.size()), 0};
  router.route(Phase::decode, s, {}, out);
  REQUIRE(out.size == memory.size());
  return memory;
}

}  // namespace

TEST_CASE("best first, ties to the lower index, NaN last") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> s = {.1F, nan, .3F, .3F, .2F};
  const auto r = route(5, 4, scores(0, s));
  CHECK(r[0].expert == 2);
  CHECK(r[1].expert == 3);
  CHECK(r[2].expert == 4);
  CHECK(r[3].expert == 0);
  CHECK(r[0].instead_of == no_expert);
  const std::vector<float> bad = {nan, nan, nan, .5F, nan};
  const auto q = route(5, 3, scores(0, bad));
  CHECK(q[0].expert == 3);
  CHECK(q[1].expert == 0);
  CHECK(q[2].expert == 1);
}

TEST_CASE("of a layer with fewer experts and a smaller k, no columns behind are read and the last routes are none") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> s = {.1F, nan, .3F, 9, 9, nan, .5F, .25F, 9, 9};
  Scores layer = scores(0, s);
  layer.layer_experts = 3;
  layer.layer_top_k = 2;
  const auto r = route(5, 4, layer, Renormalise::yes);
  CHECK(r[0].expert == 2);
  CHECK(r[1].expert == 0);
  CHECK(r[0].weight == doctest::Approx(0.75));
  CHECK(r[1].weight == doctest::Approx(0.25));
  CHECK(r[4].expert == 1);
  CHECK(r[5].expert == 2);
  for (const std::size_t i : {2U, 3U, 6U, 7U}) {
    CHECK(r[i].expert == no_expert);
    CHECK(r[i].weight == 0.0F);
    CHECK(r[i].instead_of == no_expert);
  }
}

TEST_CASE("one array chooses, the other weighs") {
  const std::vector<float> select = {1, 3, 2}, weight = {.5F, .25F, .125F};
  const auto r = route(3, 2, {0, {select.data(), 3}, {weight.data(), 3}});
  CHECK(r[0].expert == 1);
  CHECK(r[0].weight == .25F);
  CHECK(r[1].weight == .125F);
}

TEST_CASE("renormalised weights sum to one") {
  const std::vector<float> s = {.1F, .5F, .25F, .15F};
  const auto r = route(4, 2, scores(0, s), Renormalise::yes);
  CHECK(r[0].weight == doctest::Approx(2.0 / 3));
  CHECK(r[1].weight == doctest::Approx(1.0 / 3));
}

TEST_CASE("equals a stable sort on random rows with many ties") {
  Random random(11);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto experts = static_cast<std::uint16_t>(random.between(1, 20));
    const auto k = static_cast<std::uint16_t>(random.between(1, experts));
    const auto s = random.scores(std::size_t{3} * experts, true);
    const auto r = route(experts, k, scores(0, s));
    for (std::uint32_t row = 0; row < 3; ++row) {
      std::vector<std::uint16_t> order(experts);
      std::iota(order.begin(), order.end(), std::uint16_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](auto a, auto b) { return s[row * experts + a] > s[row * experts + b]; });
      for (std::uint32_t i = 0; i < k; ++i) CHECK(r[row * k + i].expert == order[i]);
    }
  }
}

TEST_CASE("a sum of next to nothing, which a choice bias can leave, is held up as the model does it") {
  const std::vector<float> select = {3, 2, 1}, weight = {0.03F, 0.01F, 0.96F};
  Scores s = scores(0, select);
  s.weight = scores(0, weight).weight;
  const auto of = [&](Renormalise renormalise, float least, float added) {
    const auto r = route(3, 2, s, renormalise, least, added);
    return std::pair{r[0].weight, r[1].weight};
  };
  const auto near = [](float x) { return doctest::Approx(x).epsilon(1e-6); };
  const auto [a, b] = of(Renormalise::yes, 0, 0);
  CHECK(a == near(.75F));
  CHECK(b == near(.25F));
  const auto [c, d] = of(Renormalise::yes, 0.1F, 0);  // clamped: .03 / .1
  CHECK(c == near(.3F));
  CHECK(d == near(.1F));
  const auto [e, f] = of(Renormalise::yes, 0, 0.06F);  // added: .03 / (.04 + .06)
  CHECK(e == near(.3F));
  CHECK(f == near(.1F));
  const auto [g, h] = of(Renormalise::yes, 0.05F, 0.06F);  // .1 is above the least
  CHECK(g == near(.3F));
  CHECK(h == near(.1F));
  CHECK(of(Renormalise::no, 0.1F, 0.06F) == std::pair{.03F, .01F});
  const std::vector<float> nothing(3, 0.0F);
  s.weight = scores(0, nothing).weight;
  const auto zero = route(3, 2, s, Renormalise::yes, 0, 1e-20F);
  CHECK(zero[0].weight == 0);
  CHECK(zero[1].weight == 0);
}
