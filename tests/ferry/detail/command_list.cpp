#include "ferry/detail/command_list.hpp"

#include <doctest/doctest.h>

#include <new>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("what is held back comes last, and what is taken back comes off the accounts") {
  alignas(64) std::byte block[2048];
  auto& list = *new (block) detail::CommandList;
  Carver carve(block + 256);
  list.reserve(carve, model(2, 4, 1, 1, 100), 4);
  Counters count;
  Residency::Slot first, second;
  first.ticket = Ticket{4};
  second.ticket = Ticket{3};
  list.submit(1, second, full(1, 2), false, true, Phase::prefill, count);
  list.submit(0, first, full(0, 0), true, false, Phase::decode, count);
  REQUIRE(list.view().submit.size == 1);
  CHECK(list.view().submit[0].demand);
  list.submit_held();
  REQUIRE(list.view().submit.size == 2);
  CHECK(list.view().submit[1].ticket == Ticket{3});
  CHECK(count.of(Phase::prefill).bytes == 100);
  CHECK(count.of(Phase::decode).bytes == 100);
  CHECK(count.bytes_by_precision[4] == 200);
  CHECK(count.prefetch.issued == 1);

  list.clear();
  CHECK(list.view().submit.size == 0);
  Residency::Slot slot;
  slot.what = full(1, 2);
  slot.ticket = Ticket{3};
  slot.submitted_in = Phase::prefill;
  list.drop(slot, count);
  CHECK(list.view().drop[0] == Ticket{3});
  CHECK(count.of(Phase::prefill).bytes == 0);
  CHECK(count.bytes_by_precision[4] == 100);
  CHECK(count.prefetch.issued == 0);
  CHECK(count.prefetch.issued_bytes == 0);
  CHECK(count.prefetch.dropped == 1);
}
