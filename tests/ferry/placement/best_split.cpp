#include "ferry/placement/best_split.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "ferry/placement/two_pointer.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

View<const Request> view(const std::vector<Request>& misses) {
  return {misses.data(), static_cast<std::uint32_t>(misses.size())};
}

std::vector<Request> misses_of(const std::vector<std::uint32_t>& rows, const std::vector<Nanoseconds>& copy_ns,
                               Nanoseconds host_ns) {
  std::vector<Request> misses(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    misses[i].rows = rows[i];
    misses[i].copy_ns = copy_ns[i];
    misses[i].host_ns = host_ns;
  }
  return misses;
}

Nanoseconds on_host(const Request& r) {
  return r.host_ns * r.rows;
}

/// max(T_load, T_cpu) when bit i of `loaded` says whether miss i is loaded.
Nanoseconds cost(const std::vector<Request>& misses, std::uint32_t loaded) {
  Nanoseconds load = 0, host = 0;
  for (std::size_t i = 0; i < misses.size(); ++i) {
    if ((loaded >> i & 1U) != 0) {
      load += misses[i].copy_ns;
    } else {
      host += on_host(misses[i]);
    }
  }
  return std::max(load, host);
}

Nanoseconds prefix_cost(const std::vector<Request>& misses, std::uint32_t n) {
  return cost(misses, (1U << n) - 1U);
}

/// The least cost of all 2^n splits.
Nanoseconds optimum(const std::vector<Request>& misses) {
  Nanoseconds least = cost(misses, 0);
  for (std::uint32_t loaded = 1; loaded < 1U << misses.size(); ++loaded) least = std::min(least, cost(misses, loaded));
  return least;
}

Nanoseconds largest_single(const std::vector<Request>& misses) {
  Nanoseconds largest = 0;
  for (const Request& r : misses) largest = std::max({largest, r.copy_ns, on_host(r)});
  return largest;
}

struct Gap {
  double sum = 0, worst = 1;
  int n = 0;
  void add(Nanoseconds found, Nanoseconds best) {
    const double ratio = static_cast<double>(found) / static_cast<double>(best);
    sum += ratio;
    worst = std::max(worst, ratio);
    ++n;
  }
};

std::vector<Request> random_misses(Random& random, std::uint32_t n, bool one_copy_cost) {
  std::vector<std::uint32_t> rows(n);
  for (auto& r : rows) r = random.between(1, 6);
  std::sort(rows.rbegin(), rows.rend());
  const Nanoseconds high = random.between(10, 100);
  std::vector<Nanoseconds> copy_ns(n, high);
  if (!one_copy_cost) {
    for (auto& c : copy_ns) c = random.chance(50) ? high : high / 4;
  }
  const Nanoseconds host_ns = random.between(1, 60);
  return misses_of(rows, copy_ns, host_ns);
}

}  // namespace

TEST_CASE("the prefix that finishes earliest") {
  // Loads cost 10, a row on the host 4. By prefix: max(0, 44), max(10, 28), max(20, 16), max(30, 8), ...
  CHECK(BestSplit::split(Phase::decode, view(misses_of({4, 3, 2, 1, 1}, {10, 10, 10, 10, 10}, 4))) == 2);
  // max(0, 3), max(1000, 2), ...: all on the host.
  CHECK(BestSplit::split(Phase::decode, view(misses_of({1, 1, 1}, {1000, 1000, 1000}, 1))) == 0);
  // max(0, 12), max(6, 6), max(12, 0): one.
  CHECK(BestSplit::split(Phase::decode, view(misses_of({1, 1}, {6, 6}, 6))) == 1);
  // max(0, 12), max(6, 9), max(12, 3), max(18, 0). Own costs: max(0, 12), max(9, 9), max(10, 3), max(11, 0).
  CHECK(BestSplit::split(Phase::decode, view(misses_of({1, 2, 1}, {6, 6, 6}, 3))) == 1);
  CHECK(BestSplit::split(Phase::decode, view(misses_of({1, 2, 1}, {9, 1, 1}, 3))) == 1);
  CHECK(BestSplit::split(Phase::decode, view({})) == 0);
}

TEST_CASE("equally good splits: the longer prefix is loaded") {
  // max(0, 5), max(5, 0).
  CHECK(BestSplit::split(Phase::decode, view(misses_of({1}, {5}, 5))) == 1);
  CHECK(BestSplit::split(Phase::decode, view(misses_of({2, 1}, {0, 0}, 0))) == 2);  // nothing is known
}

TEST_CASE("greedy split: prefill loads everything, an unmeasured host computes everything") {
  CHECK(BestSplit::split(Phase::prefill, view(misses_of({1, 1}, {1000, 1000}, 1))) == 2);
  CHECK(BestSplit::split(Phase::decode, view(misses_of({1, 1}, {1000, 1000}, 0))) == 0);
}

TEST_CASE("equal loads: the best prefix is the best split, Algorithm 2 at most one cost behind") {
  Random random(51);
  Gap greedy, two_pointer;
  for (int i = 0; i < 300; ++i) {
    const auto misses = random_misses(random, 1 + static_cast<std::uint32_t>(i) % 12, true);
    const Nanoseconds best = optimum(misses);
    const Nanoseconds g = prefix_cost(misses, BestSplit::split(Phase::decode, view(misses)));
    const Nanoseconds t = prefix_cost(misses, TwoPointer::split(Phase::decode, view(misses)));
    CHECK(g == best);
    CHECK(t <= best + largest_single(misses));
    greedy.add(g, best);
    two_pointer.add(t, best);
  }
  MESSAGE("max(T_load, T_cpu) / optimum over "
          << greedy.n << " batches with equal loads: BestSplit mean " << greedy.sum / greedy.n << " worst "
          << greedy.worst << ", TwoPointer mean " << two_pointer.sum / two_pointer.n << " worst " << two_pointer.worst);
}

TEST_CASE("loads of two precisions: Algorithm 2 is at most one cost behind the best prefix") {
  Random random(52);
  Gap greedy, two_pointer;
  for (int i = 0; i < 300; ++i) {
    const auto misses = random_misses(random, 1 + static_cast<std::uint32_t>(i) % 12, false);
    const Nanoseconds best = optimum(misses);
    Nanoseconds best_prefix = prefix_cost(misses, 0);
    for (std::uint32_t n = 1; n <= misses.size(); ++n) best_prefix = std::min(best_prefix, prefix_cost(misses, n));
    const Nanoseconds g = prefix_cost(misses, BestSplit::split(Phase::decode, view(misses)));
    const Nanoseconds t = prefix_cost(misses, TwoPointer::split(Phase::decode, view(misses)));
    CHECK(g == best_prefix);
    CHECK(g <= t);
    CHECK(t <= best_prefix + largest_single(misses));
    CHECK(best <= g);
    greedy.add(g, best);
    two_pointer.add(t, best);
  }
  MESSAGE("max(T_load, T_cpu) / optimum over "
          << greedy.n << " batches with loads of two costs: BestSplit mean " << greedy.sum / greedy.n << " worst "
          << greedy.worst << ", TwoPointer mean " << two_pointer.sum / two_pointer.n << " worst " << two_pointer.worst);
}

TEST_CASE("a host that takes as long as can be loses against any link") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  Request misses[3];
  for (Request& r : misses) {
    r.rows = 2;
    r.copy_ns = 1000;
    r.host_ns = most / 3;
  }
  CHECK(BestSplit::split(Phase::decode, {misses, 3}) == 3);
  for (Request& r : misses) {
    r.copy_ns = most;
    r.host_ns = 1;
  }
  CHECK(BestSplit::split(Phase::decode, {misses, 3}) == 0);
}
