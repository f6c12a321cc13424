#include "ferry/placement/host_in_decode.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("every miss on the host in decode, every miss loaded in prefill") {
  const Request r[3];
  CHECK(HostInDecode::split(Phase::decode, {r, 3}) == 0);
  CHECK(HostInDecode::split(Phase::prefill, {r, 3}) == 3);
}
