#include "ferry/cache/use_record.hpp"

#include <doctest/doctest.h>

#include "support/policies.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("a record of uses: the last step, how often, and how often at high precision") {
  Placed<UseRecord> record(4U);
  CHECK(record->steps() == 0);
  CHECK((*record)[3].last == 0);  // never
  record->begin_step();
  record->note(1, true);
  record->note(3, false);
  record->begin_step();
  record->begin_step();
  record->note(1, false);
  CHECK(record->steps() == 3);
  CHECK((*record)[1].last == 3);
  CHECK((*record)[1].all == 2);
  CHECK((*record)[1].high == 1);
  CHECK((*record)[3].last == 1);
  CHECK((*record)[3].all == 1);
  CHECK((*record)[3].high == 0);
  CHECK((*record)[0].all == 0);
}

TEST_CASE("a record of uses begins anew") {
  Placed<UseRecord> record(2U);
  record->begin_step();
  record->note(1, true);
  record->reset();
  CHECK(record->steps() == 0);
  CHECK((*record)[1].last == 0);
  CHECK((*record)[1].all == 0);
  CHECK((*record)[1].high == 0);
  record->begin_step();
  record->note(1, true);
  CHECK((*record)[1].last == 1);
}
