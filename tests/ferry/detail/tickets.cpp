#include "ferry/detail/tickets.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace ferry;

TEST_CASE("what was never submitted is refused by its number, what was is not") {
  CHECK(detail::ticket_before(Ticket{7}) == Ticket{6});
  CHECK_NOTHROW(detail::check_submitted(Ticket{4}, Ticket{4}));
  CHECK_THROWS_WITH_AS(detail::check_submitted(Ticket{6}, Ticket{4}),
                       "wait for copy 6 that was not submitted: call done() for the task before it in its slot",
                       LinkError);
}

TEST_CASE("a copy is taken to last as long as the last of its precision") {
  detail::CopyTimes times;
  CHECK(times.left(Precision::full, 100, 130) == 0);  // none has landed
  times.note(Precision::full, 50);
  times.note(Precision::int4, 10);
  CHECK(times.left(Precision::full, 100, 100) == 50);
  CHECK(times.left(Precision::full, 100, 130) == 20);
  CHECK(times.left(Precision::int4, 100, 105) == 5);
  CHECK(times.left(Precision::full, 100, 150) == 1);  // it takes longer than that one did
  CHECK(times.left(Precision::full, 100, 900) == 1);
  CHECK(times.left(Precision::full, 100, 130, 3) == 120);  // three that land together
  times.note(Precision::full, 90);
  CHECK(times.left(Precision::full, 100, 150) == 40);
}

TEST_CASE("a copy that took as long as can be takes no less") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  detail::CopyTimes times;
  times.note(Precision::full, most);
  CHECK(times.left(Precision::full, 1000, 1100, 3) == most - 1100);
}
