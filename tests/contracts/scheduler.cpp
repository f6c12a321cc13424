// Every Scheduler of the library, tried by its contract. A new policy is registered in the list.
#include "contracts/scheduler.hpp"

#include "ferry/stacks.hpp"
#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

// Each limit, order and placement of the library is part of one of these.
using InArrivalOrder = Schedule<NoLimit, ArrivalOrder, DeviceOnly>;
using ByPopularity = Schedule<TransferBudget, PopularityOrder, HostInDecode>;
using TwoPointers = Schedule<FirstMiss, BatchSizeOrder, TwoPointer>;
using Greedy = Schedule<NoLimit, BatchSizeOrder, BestSplit>;
using Earliest = Schedule<NoLimit, BatchSizeOrder, EarliestFinish>;
using Chosen = Schedule<NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::best_split>>;
using Lossy = Schedule<NoLimit, Reversed, SomeOnHost>;
TEST_CASE_TEMPLATE_INVOKE(scheduler_contract, InArrivalOrder, ByPopularity, TwoPointers, Greedy, Earliest, Chosen,
                          Lossy);
TEST_CASE_TEMPLATE_INVOKE(scheduler_extremes, InArrivalOrder, ByPopularity, TwoPointers, Greedy, Earliest, Chosen,
                          Lossy);
