#include "ferry/detail/command_list.hpp"

#include <doctest/doctest.h>

#include <new>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("what is held back comes last, and a new call begins with nothing but that") {
  alignas(64) std::byte block[2048];
  auto& list = *new (block) detail::CommandList;
  Carver carve(block + 256);
  list.reserve(carve, 4, 4);
  Residency::Slot first, second;
  first.ticket = Ticket{4};
  first.last_reader = Fence{7};
  second.ticket = Ticket{3};
  list.submit(1, second, full(1, 2), false, true);
  list.submit(0, first, full(0, 0), true, false);
  REQUIRE(list.view().submit.size == 1);
  CHECK(list.view().submit[0].demand);
  CHECK(list.view().submit[0].after == Fence{7});
  list.submit_held();
  REQUIRE(list.view().submit.size == 2);
  CHECK(list.view().submit[1].ticket == Ticket{3});
  CHECK(list.view().submit[1].what == full(1, 2));

  list.submit(1, second, full(1, 2), false, true);
  list.clear();
  CHECK(list.view().submit.size == 0);
  list.drop(Ticket{3});
  REQUIRE(list.view().drop.size == 1);
  CHECK(list.view().drop[0] == Ticket{3});
  list.clear();
  CHECK(list.view().drop.size == 0);
  list.submit_held();
  CHECK(list.submits() == 1);
}
