#include "ferry/detail/measured_costs.hpp"

#include <doctest/doctest.h>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("what was not measured leaves the last time, each phase and layer for itself") {
  CoreSettings settings;
  settings.copy_ns[static_cast<unsigned>(Precision::int4)] = 7;
  alignas(64) std::byte block[1024];
  auto& costs = *new (block) detail::MeasuredCosts(settings);
  Carver carve(block + sizeof(costs));
  costs.reserve(carve, 3);
  costs.note(Phase::decode, 1, {1, 2, 3, 4});
  costs.note(Phase::decode, 1, {10, 0, 30, 0});
  CHECK(costs.of(Phase::decode, 1).attention == 10);
  CHECK(costs.of(Phase::decode, 1).gate == 2);
  CHECK(costs.of(Phase::decode, 1).device == 30);
  CHECK(costs.of(Phase::decode, 1).host == 4);
  CHECK(costs.of(Phase::prefill, 1).host == 0);
  CHECK(costs.of(Phase::decode, 2).host == 0);

  Request r;
  r.want = {{1, 0}, Precision::int4};
  costs.set(Phase::decode, r);
  CHECK(r.copy_ns == 7);
  CHECK(r.device_ns == 30);
  CHECK(r.host_ns == 4);
  r.want.precision = Precision::full;
  costs.set(Phase::prefill, r);
  CHECK(r.copy_ns == 0);
  CHECK(r.host_ns == 0);
}
