// Optional hooks: one that is declared counts, an absent one has its default, and a wrong signature is no hook.
#include "ferry/detail/hooks.hpp"

#include <doctest/doctest.h>

#include "ferry/cache/expected_savings.hpp"
#include "ferry/cache/lru.hpp"
#include "ferry/placement/device_only.hpp"
#include "ferry/placement/earliest_finish.hpp"
#include "ferry/predictor/none.hpp"
#include "ferry/router/expert_cache.hpp"
#include "ferry/router/expert_skipping.hpp"
#include "ferry/router/top_k.hpp"

using namespace ferry;

namespace {

struct SaysNothing {};

struct ReadsNothing {
  static constexpr RowSource prefill_rows = RowSource::none;
  std::uint32_t depth = 3;
};
static_assert(part::rows_of<SaysNothing>(Phase::decode) == RowSource::gate_input);
static_assert(part::rows_of<ReadsNothing>(Phase::prefill) == RowSource::none);
static_assert(part::rows_of<ReadsNothing>(Phase::decode) == RowSource::gate_input);
static_assert(part::depth_of(SaysNothing{}) == 1 && part::depth_of(ReadsNothing{}) == 3);
static_assert(part::depth_of(NoPrediction{}) == 0);

static_assert(part::predicts<SaysNothing>() && !part::predicts<NoPrediction>());
static_assert(part::substitutes<ExpertCacheRouter>() && !part::substitutes<TopK>());
static_assert(part::skips<ExpertSkipping>() && !part::skips<ExpertCacheRouter>());
static_assert(part::Revises<ExpertSkipping> && !part::Revises<TopK>);
static_assert(part::needs_residency<ExpertCacheRouter>() && !part::needs_residency<SaysNothing>());
static_assert(part::computes_on_host<EarliestFinish>() && !part::computes_on_host<DeviceOnly>());

static_assert(part::WeighsLayers<EarliestFinish> && part::Saves<EarliestFinish> && part::Promotes<EarliestFinish>);
static_assert(!part::WeighsLayers<DeviceOnly> && !part::Saves<DeviceOnly> && !part::Promotes<DeviceOnly>);
static_assert(part::CountsSavings<ExpectedSavings> && part::Wants<ExpectedSavings>);
static_assert(part::Gains<ExpectedSavings> && !part::Gains<Lru>);
static_assert(!part::CountsSavings<Lru> && !part::Wants<Lru>);
static_assert(part::SeesChoices<ExpectedSavings> && part::SeesLoads<ExpectedSavings>);
static_assert(part::SeesLayersEnd<ExpectedSavings>);
static_assert(!part::SeesChoices<Lru> && !part::SeesLoads<Lru> && !part::SeesLayersEnd<Lru>);

struct MayThrow {
  void saved(View<const Request>, std::uint32_t, Nanoseconds) {}
};
struct WantsWithoutWorth {
  ExpertId wanted() noexcept { return {}; }
};
static_assert(!part::CountsSavings<MayThrow> && !part::Wants<WantsWithoutWorth>);

}  // namespace
