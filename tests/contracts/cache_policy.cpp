// Every CachePolicy of the library, tried by its contract. A new policy is registered in the list.
#include "contracts/cache_policy.hpp"

#include "ferry/cache/arc.hpp"
#include "ferry/cache/belady.hpp"
#include "ferry/cache/expected_savings.hpp"
#include "ferry/cache/fifo.hpp"
#include "ferry/cache/fld.hpp"
#include "ferry/cache/lfu.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/load_on_demand.hpp"
#include "ferry/cache/lru.hpp"
#include "ferry/cache/multidimensional.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/score_average.hpp"
#include "ferry/cache/score_window.hpp"
#include "ferry/cache/sieve.hpp"
#include "ferry/cache/static.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE_TEMPLATE_INVOKE(cache_policy_contract, LoadOnDemand, RandomVictim, FifoCache, Lru, Lfu, Lhu, Fld,
                          Multidimensional, Arc, Sieve, ScoreWindow, ScoreAverage, StaticResidency, Belady,
                          ExpectedSavings);
