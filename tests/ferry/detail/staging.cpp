#include "ferry/detail/staging.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <new>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct StagingFixture {
  StagingFixture() {
    Carver carve(block + 256);
    staging.reserve(carve, 2);
  }
  alignas(64) std::byte block[1024];
  detail::Staging& staging = *new (block) detail::Staging;
};

}  // namespace

TEST_CASE("as many prefetches wait as there are stream slots, the best first") {
  StagingFixture f;
  CHECK(f.staging.empty());
  for (std::uint16_t e = 0; e < 3; ++e) f.staging.push(full(1, e));
  CHECK(f.staging.front() == full(1, 0));
  f.staging.pop();
  CHECK(f.staging.front() == full(1, 1));
  f.staging.pop();
  CHECK(f.staging.empty());
  f.staging.clear();
  f.staging.push(full(2, 5));
  CHECK(f.staging.front() == full(2, 5));
}

TEST_CASE("a copy that would be waited for is worth it if it is likely enough to be needed") {
  StagingFixture f;
  CHECK(f.staging.is_worth(1000));  // nothing is known
  f.staging.finish({60, 10, 30, 500});
  f.staging.plan(9, 10);
  // Waiting wins 100 ns with 9 in 10, and loses the time beyond that with 1 in 10.
  CHECK(f.staging.is_worth(100 + 900));
  CHECK_FALSE(f.staging.is_worth(100 + 901));
  f.staging.plan(1, 10);
  CHECK(f.staging.is_worth(100));  // loses nothing
  CHECK_FALSE(f.staging.is_worth(112));
  f.staging.plan(10, 10);
  CHECK(f.staging.is_worth(1'000'000'000));
  f.staging.plan(4, 3);  // some were on their way already
  CHECK(f.staging.is_worth(1'000'000'000));
}

TEST_CASE("times near the longest weigh as the longest") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  StagingFixture f;
  f.staging.plan(1, 1000);
  f.staging.finish({most, most, most, 0});
  CHECK(f.staging.is_worth(most));
  f.staging.finish({10, 0, 0, 0});
  CHECK_FALSE(f.staging.is_worth(most));
}
