#include "ferry/detail/layer_routes.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct RoutesFixture {
  RoutesFixture() {
    Carver carve(block);
    routes.reserve(carve, model(1, 8, 2, 3));
  }
  /// What is told, and how often.
  int tell() {
    int times = 0;
    routes.tell([&](View<const Route> of_layer, View<const std::uint32_t> which) {
      told.assign(of_layer.begin(), of_layer.end());
      rows.assign(which.begin(), which.end());
      ++times;
    });
    return times;
  }
  alignas(64) std::byte block[256] = {};
  detail::LayerRoutes routes;
  std::vector<Route> told;
  std::vector<std::uint32_t> rows;
};

}  // namespace

TEST_CASE("a layer's routes are told once, with the rows as they were when it was planned") {
  RoutesFixture f;
  CHECK(f.tell() == 0);
  const Route chosen[] = {{4, 0.7F}, {1, 0.3F}, {2, 0.6F}, {5, 0.4F}};
  std::uint32_t rows[] = {0, 2};
  CHECK(f.routes.copy({chosen, 4}).size == 4);
  f.routes.keep(4, {rows, 2});
  rows[1] = 1;
  CHECK(f.tell() == 1);
  REQUIRE(f.told.size() == 4);
  CHECK(f.told[3].expert == 5);
  CHECK(f.told[3].weight == 0.4F);
  CHECK(f.rows == std::vector<std::uint32_t>{0, 2});
  CHECK(f.tell() == 0);
}

TEST_CASE("a row that is left out still says the gate's choice, a substitute's too") {
  RoutesFixture f;
  const Route chosen[] = {{4, 0.7F}, {1, 0.3F, 6}};
  f.routes.copy({chosen, 2});
  f.routes.keep(2, {});
  f.routes.leave_out(0);
  f.routes.leave_out(1);
  CHECK(f.tell() == 1);
  for (const Route& r : f.told) {
    CHECK(r.expert == no_expert);
    CHECK(r.weight == 0.0F);
  }
  CHECK(gate_choice(f.told[0]) == 4);
  CHECK(gate_choice(f.told[1]) == 6);
  CHECK(f.rows.empty());
}

TEST_CASE("there is room for every row's routes") {
  RoutesFixture f;
  Out<Route> out = f.routes.room();
  for (std::uint16_t i = 0; i < 6; ++i) {
    REQUIRE(out.add() != nullptr);
    out.data[i].expert = i;
  }
  CHECK(out.add() == nullptr);
  f.routes.keep(6, {});
  CHECK(f.tell() == 1);
  CHECK(f.told[5].expert == 5);
}
