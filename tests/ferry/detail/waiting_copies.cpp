#include "ferry/detail/waiting_copies.hpp"

#include <doctest/doctest.h>

#include "support/shapes.hpp"

using namespace ferry;
using ferry::detail::SimulatedCopy;
using ferry::detail::WaitingCopies;

namespace {

SimulatedCopy copy(std::uint64_t ticket, std::uint32_t slot = 0, Nanoseconds from = 0) {
  return {{Ticket{ticket}, test::full(0, 0), slot, Fence::none, !is_prefetch(Ticket{ticket})}, from, 64};
}
std::uint64_t number(const SimulatedCopy& c) {
  return static_cast<std::uint64_t>(c.copy.ticket);
}

}  // namespace

TEST_CASE("demand copies go before prefetches, each in their order, also one that may not begin yet") {
  WaitingCopies w;
  CHECK(w.empty());
  CHECK(w.next(0) == nullptr);
  w.push(copy(3));
  w.push(copy(5));
  w.push(copy(4, 0, 1000));
  w.push(copy(6));
  CHECK(number(*w.demand()) == 4);
  CHECK(number(*w.prefetch()) == 3);
  CHECK(number(w.take(0)) == 4);
  CHECK(number(w.take(0)) == 6);
  w.drop(Ticket{3});
  CHECK(number(w.take(0)) == 5);
  CHECK(w.empty());
}

TEST_CASE("what was overtaken goes before prefetches, and before demand that cannot or must not pass it") {
  WaitingCopies w;
  w.push(copy(5, 2));
  w.overtake(copy(3, 1));
  CHECK(number(*w.next(0)) == 3);
  w.push(copy(4, 0, 100));
  CHECK(number(*w.next(99)) == 3);   // the demand copy may not begin
  CHECK(number(*w.next(100)) == 4);  // it may
  CHECK(!w.await(Ticket{9}));
  CHECK(w.await(Ticket{3}));
  CHECK(number(*w.next(100)) == 3);  // somebody waits for it
  CHECK(number(w.take(100)) == 3);
  CHECK(w.overtaken() == nullptr);
  w.overtake(copy(7, 0));
  CHECK(number(*w.next(100)) == 7);  // the demand copy writes to its slot
  w.drop(Ticket{7});
  CHECK(number(*w.next(100)) == 4);
}

TEST_CASE("who waits for a copy that has not begun keeps it from being overtaken later") {
  WaitingCopies w;
  w.push(copy(3));
  CHECK(w.await(Ticket{3}));
  CHECK(w.take(0).waited_for);
  CHECK(!w.await(Ticket{3}));
}
