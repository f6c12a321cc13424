// Worked by hand: work that takes 1000 ns alone, and 3000 beside other work.
#include "ferry/detail/shared_progress.hpp"

#include <doctest/doctest.h>

using namespace ferry;
using ferry::detail::SharedProgress;

TEST_CASE("work ends after its time alone, later where it is slowed for a while") {
  SharedProgress p;
  CHECK(p.end() == SharedProgress::never);
  p.start({1000, 3000}, 50);
  CHECK(p.end() == 1050);
  CHECK(p.left_at(450) == 600);
  p.pace(true, 450);
  CHECK(p.end() == 450 + 1800);
  CHECK(p.left_at(750) == 500);
  p.pace(true, 800);  // as before: nothing is rounded
  CHECK(p.since == 450);
  p.pace(false, 750);
  CHECK(p.end() == 1250);
}

TEST_CASE("work that stops earlier ends where so much of it is left") {
  SharedProgress p;
  p.start({1000, 3000}, 0);
  p.stop = 400;
  CHECK(p.end() == 600);
  CHECK(p.end(0) == 1000);
  p.pace(true, 200);
  CHECK(p.end() == 200 + 1200);
  CHECK(p.end(0) == 200 + 2400);
  p.start({10, 10}, 7);
  CHECK(p.stop == 0);
  p.pace(true, 8);  // the same pace
  CHECK(!p.slowed);
}

TEST_CASE("nothing ends behind the end of time") {
  SharedProgress p;
  p.start({1000, 1000}, SharedProgress::never - 10);
  CHECK(p.end() == SharedProgress::never - 1);
}
