#include "ferry/detail/tickets.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("what was never submitted is refused by its number, what was is not") {
  CHECK(detail::ticket_before(Ticket{7}) == Ticket{6});
  CHECK_NOTHROW(detail::check_submitted(Ticket{4}, Ticket{4}));
  CHECK_THROWS_WITH_AS(detail::check_submitted(Ticket{6}, Ticket{4}),
                       "wait for copy 6 that was not submitted: call done() for the task before it in its slot",
                       LinkError);
}
