#include "ferry/model.hpp"

#include <doctest/doctest.h>

#include <type_traits>

using namespace ferry;

static_assert(std::is_trivially_copyable_v<Plan> && std::is_trivially_copyable_v<Request> &&
              std::is_trivially_copyable_v<Task> && std::is_trivially_copyable_v<Copy>);
static_assert(Precision::skip < Precision::int2 && Precision::int2 < Precision::int4 &&
              Precision::int4 < Precision::int8 && Precision::int8 < Precision::full);
static_assert(State::absent < State::queued && State::queued < State::in_flight && State::in_flight < State::resident);

TEST_CASE("odd tickets are prefetches") {
  CHECK_FALSE(is_prefetch(Ticket{2}));
  CHECK(is_prefetch(Ticket{3}));
}

TEST_CASE("an output buffer refuses what does not fit") {
  int memory[2] = {0, 0};
  Out<int> out{memory, 2, 0};
  CHECK(out.push(1));
  CHECK(out.push(2));
  CHECK_FALSE(out.push(3));
  CHECK(out.view().size == 2);
  CHECK(out.view()[1] == 2);
}
