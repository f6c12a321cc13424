/// @file
/// What concepts.hpp asks of every Scheduler. Engines try theirs with it, too: contracts/own_policy/main.cpp.
#pragma once
#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "ferry/concepts.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"

namespace ferry::test {

TEST_CASE_TEMPLATE_DEFINE("Scheduler", S, scheduler_contract) {
  const S scheduler{};
  Random random(8);
  for (int i = 0; i < 2000; ++i) {
    const Phase phase = random.chance(50) ? Phase::prefill : Phase::decode;
    const std::uint32_t n = random.below(9);
    Request r[8];
    for (std::uint16_t e = 0; e < n; ++e) {
      r[e].want.id = {0, e};
      r[e].rows = random.between(1, 5);
      r[e].copy_ns = random.below(1000);
      r[e].host_ns = random.below(1000);
    }
    PrefetchWindow window;
    window.phase = phase;
    window.distance = static_cast<std::uint16_t>(random.between(1, 4));
    window.layer_ns = random.below(5000);
    window.taken = random.below(5);
    window.taken_ns = random.below(5000);
    const std::uint32_t taken = scheduler.take(window, {r, n});
    CHECK(taken <= n);
    CHECK(scheduler.split(phase, {r, n}) <= n);
    scheduler.order(phase, random.chance(50), {r, n});
    std::set<std::uint16_t> still;
    for (std::uint32_t e = 0; e < n; ++e) still.insert(r[e].want.id.expert);
    CHECK(still.size() == n);  // a permutation
    REQUIRE(broken(scheduler) == "");
  }
}

/// Times that a wrong clock or calibration may give: the longest, zero, and values close to both.
inline Nanoseconds extreme_time(Random& random) {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  const Nanoseconds some[] = {0, 1, 1000, most / 1000, most / 3, most / 2, most - 1, most};
  return some[random.below(8)];
}

TEST_CASE_TEMPLATE_DEFINE("Scheduler, of times near the longest", S, scheduler_extremes) {
  const S scheduler{};
  Random random(9);
  for (int i = 0; i < 2000; ++i) {
    const Phase phase = random.chance(20) ? Phase::prefill : Phase::decode;
    const std::uint32_t n[] = {random.below(5), random.below(5), random.below(3)};
    Request r[3][4];
    for (std::uint32_t list = 0; list < 3; ++list) {
      for (std::uint32_t e = 0; e < n[list]; ++e) {
        Request& one = r[list][e];
        one.want.id = {0, static_cast<std::uint16_t>(4 * list + e)};
        one.rows = random.chance(20) ? 0xffffffffU : random.between(1, 5);
        one.copy_ns = extreme_time(random);
        one.device_ns = extreme_time(random);
        one.host_ns = extreme_time(random);
      }
    }
    LayerCosts costs;
    for (Nanoseconds& ns : costs.device_ns) ns = extreme_time(random);
    for (Nanoseconds& ns : costs.host_ns) ns = extreme_time(random);
    costs.host_row_ns = extreme_time(random);
    costs.host_start_ns = extreme_time(random);
    costs.link_ns = extreme_time(random);
    costs.link_beside_host = random.below(1100);
    costs.host_beside_copies = random.below(1100);
    const View<Request> resident{r[0], n[0]}, misses{r[1], n[1]}, arriving{r[2], n[2]};
    const PrefetchWindow window{phase, 1, extreme_time(random), 0, 0};
    CHECK(scheduler.take(window, misses) <= misses.size);
    scheduler.order(phase, true, misses);
    CHECK(scheduler.split(phase, misses) <= misses.size);
    if constexpr (ferry::part::WeighsLayers<S>) {
      const Split split = scheduler.split(phase, resident, misses, arriving, costs);
      CHECK(split.loads <= misses.size);
      CHECK(split.hosted <= resident.size);
    }
    if constexpr (ferry::part::Saves<S>) {
      const Savings savings = scheduler.saves(phase, resident, misses, arriving, costs);
      if (phase == Phase::decode) CHECK(savings.there >= 0);
    }
    if constexpr (ferry::part::Promotes<S>) {
      Request dear;
      dear.copy_ns = std::numeric_limits<Nanoseconds>::max();
      costs.host_beside_copies = 500;
      CHECK_FALSE(scheduler.promotes(dear, 1000, costs));
    }
  }
}

}  // namespace ferry::test
