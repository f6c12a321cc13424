#include "ferry/detail/measured_costs.hpp"

#include <doctest/doctest.h>

#include <limits>

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
  LayerCosts weighed;
  Task task;
  task.rows = 1;
  costs.note(Phase::decode, 1, {1, 2, 3, 4}, {&task, 1}, weighed);
  costs.note(Phase::decode, 1, {10, 0, 30, 0}, {}, weighed);
  CHECK(weighed.host_ns[static_cast<unsigned>(Precision::full)] == 4);
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

TEST_CASE("times near the longest add up to the longest, and what cannot be is not noted") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  alignas(64) std::byte block[1024];
  auto& costs = *new (block) detail::MeasuredCosts(CoreSettings{});
  Carver carve(block + sizeof(costs));
  costs.reserve(carve, 2);
  CHECK(costs.layer_ns(Phase::decode, 0, 3) == 0);
  LayerCosts weighed;
  costs.note(Phase::decode, 0, {10, 5, 20, 0}, {}, weighed);
  CHECK(costs.layer_ns(Phase::decode, 0, 3) == 75);
  costs.note(Phase::decode, 0, {-1, -1, -1, -1}, {}, weighed);
  CHECK(costs.layer_ns(Phase::decode, 0, 3) == 75);
  costs.note(Phase::decode, 0, {most, most, most, most}, {}, weighed);
  CHECK(costs.layer_ns(Phase::decode, 0, 3) == most);
  costs.note(Phase::decode, 2, {1, 1, 1, 1}, {}, weighed);  // there is none: it would be the first of the other phase
  costs.note(Phase::prefill, 2, {1, 1, 1, 1}, {}, weighed);
  CHECK(costs.layer_ns(Phase::decode, 1, 1) == 0);
  CHECK(costs.layer_ns(Phase::prefill, 0, 1) == 0);
  CHECK(costs.layer_ns(Phase::prefill, 1, 1) == 0);
}
