#include "ferry/limit/transfer_budget.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace ferry;

namespace {

std::uint32_t take(const TransferBudget& limit, const PrefetchWindow& window, const std::vector<Nanoseconds>& costs) {
  std::vector<Request> absent(costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) absent[i].copy_ns = costs[i];
  return limit.take(window, {absent.data(), static_cast<std::uint32_t>(absent.size())});
}

PrefetchWindow decode(Nanoseconds layer_ns, Nanoseconds taken_ns = 0) {
  return {Phase::decode, 1, layer_ns, taken_ns > 0 ? 1U : 0U, taken_ns};
}

}  // namespace

TEST_CASE("at most floor(T / t_io) experts") {
  const std::vector<Nanoseconds> ten(10, 300);
  CHECK(take({}, decode(1000), ten) == 3);
  CHECK(take({}, decode(899), ten) == 2);
  CHECK(take({}, decode(900), ten) == 3);  // exact multiples
  CHECK(take({}, decode(901), ten) == 3);
  CHECK(take({}, decode(300), ten) == 1);
  CHECK(take({}, decode(299), ten) == 0);
  CHECK(take({}, decode(9000), ten) == 10);  // no more than there are
  CHECK(take({}, decode(1000), {}) == 0);
}

TEST_CASE("copies of different precision: as many from the front as fit") {
  CHECK(take({}, decode(1000), {400, 400, 100, 100, 100}) == 4);
  CHECK(take({}, decode(1000), {400, 700, 100}) == 1);  // none is passed over
}

TEST_CASE("what was taken since the plan counts") {
  CHECK(take({}, decode(1000, 400), {300, 300, 300}) == 2);
  CHECK(take({}, decode(1000, 1200), {300}) == 0);
  CHECK(TransferBudget{}.further(decode(1000)));
  CHECK(TransferBudget{}.further(decode(1000, 999)));
  CHECK_FALSE(TransferBudget{}.further(decode(1000, 1000)));
  CHECK_FALSE(TransferBudget{}.further(decode(1000, 1200)));
}

TEST_CASE("a calibrated layer time goes before the measured one") {
  CHECK(take({600}, decode(1000), {300, 300, 300}) == 2);
  CHECK(take({600}, decode(0), {300, 300, 300}) == 2);
  CHECK_FALSE(TransferBudget{600}.further(decode(1000, 600)));
}

TEST_CASE("no limit in prefill, and none while costs are unknown") {
  PrefetchWindow prefill = decode(1000, 2000);
  prefill.phase = Phase::prefill;
  CHECK(take({}, prefill, {300, 300, 300, 300}) == 4);
  CHECK(take({600}, prefill, {300, 300, 300, 300}) == 4);
  CHECK(TransferBudget{}.further(prefill));
  CHECK(take({}, decode(0, 500), {300, 300}) == 2);
  CHECK(TransferBudget{}.further(decode(0, 500)));
  CHECK(take({}, decode(1000), {0, 0, 0}) == 3);
}
