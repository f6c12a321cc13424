// Every ExpertRouter of the library, tried by its contract. A new policy is registered in the list.
#include "contracts/router.hpp"

#include "ferry/router/expert_cache.hpp"
#include "ferry/router/expert_skipping.hpp"
#include "ferry/router/top_k.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE_TEMPLATE_INVOKE(router_contract, TopK, ExpertCacheRouter, ExpertSkipping);
