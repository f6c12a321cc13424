#include "ferry/stacks.hpp"

#include <doctest/doctest.h>

using namespace ferry;

// An absent policy costs nothing.
static_assert(std::is_empty_v<NoPrediction> && std::is_empty_v<LoadOnDemand> &&
              std::is_empty_v<stacks::LoadEverything>);
static_assert(Scheduler<stacks::LoadEverything>);

TEST_CASE("stacks say what they need") {
  CHECK_FALSE(part::predicts<stacks::OnDemand::predictor>());
  CHECK(part::predicts<stacks::CrossLayerLru::predictor>());
  CHECK_FALSE(part::caches<stacks::OnDemand::cache>());
  CHECK(part::caches<stacks::LruCache::cache>());
}
