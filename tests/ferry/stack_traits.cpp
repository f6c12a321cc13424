#include "ferry/stack_traits.hpp"

#include <doctest/doctest.h>

#include "ferry/stacks.hpp"

using namespace ferry;

TEST_CASE("what a stack is like is known without its type") {
  constexpr StackTraits lru = traits_of<stacks::LruCache>(), demand = traits_of<stacks::OnDemand>(),
                        importance = traits_of<stacks::ImportanceDriven>(), ours = traits_of<stacks::Ferry>(),
                        lossy = traits_of<stacks::FerryLossy>();
  CHECK(lru.caches);
  CHECK_FALSE(lru.predicts);
  CHECK_FALSE(lru.computes_on_host);
  CHECK_FALSE(demand.caches);
  CHECK(importance.predicts);
  CHECK(importance.substitutes);
  CHECK(importance.preloads);
  CHECK(importance.computes_on_host);
  CHECK(importance.router_needs_scores);
  CHECK(importance.cache_needs_scores);
  CHECK(importance.rows[static_cast<unsigned>(Phase::decode)] == RowSource::partial_hidden);
  CHECK(ours.computes_on_host);
  CHECK(ours.preloads);
  CHECK_FALSE(ours.router_needs_scores);
  CHECK_FALSE(ours.cache_needs_scores);
  CHECK_FALSE(ours.skips);
  CHECK(lossy.skips);
  CHECK(traits_of<stacks::Hobbit>().skips);  // by its precisions
  CHECK_FALSE(lossy.substitutes);
  CHECK_FALSE(lossy.router_needs_scores);
}
