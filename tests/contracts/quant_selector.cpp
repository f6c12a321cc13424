// Every QuantSelector of the library, tried by its contract. A new policy is registered in the list.
#include "contracts/quant_selector.hpp"

#include "ferry/precision/fixed.hpp"
#include "ferry/precision/importance_thresholds.hpp"
#include "ferry/precision/popularity_hybrid.hpp"
#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE_TEMPLATE_INVOKE(quant_selector_contract, FixedPrecision, ImportanceThresholds, PopularityHybrid,
                          MixedPrecision);
