// What concepts.hpp asks of every Scheduler. A new policy is registered in the list at the end.
#include <doctest/doctest.h>

#include <set>

#include "ferry/stacks.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

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

// Every limit, order and placement is in one of these.
using InArrivalOrder = Schedule<NoLimit, ArrivalOrder, DeviceOnly>;
using ByPopularity = Schedule<TransferBudget, PopularityOrder, HostInDecode>;
using TwoPointers = Schedule<FirstMiss, BatchSizeOrder, TwoPointer>;
using Greedy = Schedule<NoLimit, BatchSizeOrder, BestSplit>;
using Earliest = Schedule<NoLimit, BatchSizeOrder, EarliestFinish>;
using Chosen = Schedule<NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::best_split>>;
using Lossy = Schedule<NoLimit, Reversed, SomeOnHost>;
TEST_CASE_TEMPLATE_INVOKE(scheduler_contract, InArrivalOrder, ByPopularity, TwoPointers, Greedy, Earliest, Chosen,
                          Lossy);
