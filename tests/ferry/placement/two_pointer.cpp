#include "ferry/placement/two_pointer.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using namespace ferry;

namespace {

std::uint32_t split(const std::vector<std::uint32_t>& rows, const std::vector<Nanoseconds>& copy_ns,
                    Nanoseconds host_ns, Phase phase = Phase::decode) {
  std::vector<Request> misses(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    misses[i].rows = rows[i];
    misses[i].copy_ns = copy_ns[i];
    misses[i].host_ns = host_ns;
  }
  return TwoPointer::split(phase, {misses.data(), static_cast<std::uint32_t>(misses.size())});
}

}  // namespace

TEST_CASE("Algorithm 2, step by step") {
  // A load costs 10, a row on the host 4. Batches 4 3 2 1 1.
  // load 4: C_load 10, C_cpu 0 | host 1: C_cpu 4 | host 1: C_cpu 8 | host 2: C_cpu 16 | load 3: C_load 20. Met.
  CHECK(split({4, 3, 2, 1, 1}, {10, 10, 10, 10, 10}, 4) == 2);
  // The host pays by row: load 4: 10, 0 | host 3: 10, 12 | load 3: 20, 12 | host 3: 20, 24. Met.
  CHECK(split({4, 3, 3, 3}, {10, 10, 10, 10}, 4) == 2);
  // Equal sums load: load 2: 4, 0 | host 1: 4, 4 | load 1: 8, 4. Met.
  CHECK(split({2, 1, 1}, {4, 4, 4}, 4) == 2);
  // Each load at its own cost: load 3: 12, 0 | host 1: 12, 5 | host 2: 12, 15. Met.
  CHECK(split({3, 2, 1}, {12, 4, 4}, 5) == 1);
  // A slow host: load 2: 10, 0 | host 1: 10, 100 | load 2: 20, 100 | load 2: 30, 100. Met.
  CHECK(split({2, 2, 2, 1}, {10, 10, 10, 10}, 100) == 3);
  CHECK(split({}, {}, 4) == 0);
}

TEST_CASE("the first miss is loaded, even if the host were faster") {
  CHECK(split({1}, {1000}, 1) == 1);
  CHECK(split({1, 1}, {1000, 1000}, 1) == 1);
}

TEST_CASE("prefill loads everything") {
  CHECK(split({4, 3, 2}, {10, 10, 10}, 1, Phase::prefill) == 3);
}

TEST_CASE("unknown costs count as nothing") {
  CHECK(split({4, 3, 2}, {0, 0, 0}, 0) == 3);
  CHECK(split({4, 3, 2}, {0, 0, 0}, 4) == 3);
  CHECK(split({4, 3, 2}, {10, 10, 10}, 0) == 1);
}

TEST_CASE("sums of times near the longest stay the larger ones") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  // The first is loaded, and no load is cheaper than a host that takes 1000 a row: it computes the others.
  CHECK(split({2, 2, 2, 2}, {most, most, most, most}, 1000) == 1);
  // Two rows on the host do not fit: one batch there, and all others are loaded.
  CHECK(split({2, 2, 2, 2}, {1000, 1000, 1000, 1000}, most / 2 + 1) == 3);
}
