#include "ferry/sim/bounds.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// The experts that one layer of one step asks for.
struct AskedFor {
  std::uint16_t layer = 0;
  std::vector<std::uint16_t> experts;
};

std::vector<AskedFor> ask(const std::vector<std::vector<std::uint16_t>>& sets) {
  std::vector<AskedFor> a;
  for (const auto& s : sets) a.push_back({0, s});
  return a;
}

UseLog log_of(const std::vector<AskedFor>& asked, Precision precision = Precision::full) {
  UseLog log;
  for (const AskedFor& a : asked) {
    for (const std::uint16_t e : a.experts) log.add({{a.layer, e}, precision});
    log.end_layer();
  }
  return log;
}

std::uint64_t fewest(const std::vector<AskedFor>& asked, std::uint64_t slots) {
  return fewest_copies(log_of(asked), Precision::full, slots);
}

/// The true optimum, by trying everything: any initial contents, any order within a set, and any choice of what to keep, for a
/// cache in which an expert must be present while it is used.
std::uint64_t brute_force(const std::vector<AskedFor>& asked, std::uint32_t experts, std::uint32_t slots) {
  std::map<std::pair<std::size_t, unsigned>, std::uint64_t> known;  // (position in the flat list of uses, contents)
  constexpr std::uint64_t none = 1'000'000;
  // Contents are bit sets. Within a set, uses may come in any order: remember which are still to do.
  std::function<std::uint64_t(std::size_t, unsigned, unsigned)> best = [&](std::size_t at, unsigned left,
                                                                           unsigned contents) -> std::uint64_t {
    if (left == 0) {
      if (++at >= asked.size()) return 0;
      for (const auto e : asked[at].experts) left |= 1U << e;
    }
    const auto key = std::pair{at * 256 + left, contents};
    if (const auto found = known.find(key); found != known.end()) return found->second;
    std::uint64_t least = none;
    for (std::uint32_t e = 0; e < experts; ++e) {
      if ((left >> e & 1U) == 0) continue;
      if ((contents >> e & 1U) != 0) {
        least = std::min(least, best(at, left & ~(1U << e), contents));
        continue;
      }
      if (static_cast<std::uint32_t>(std::popcount(contents)) < slots) {
        least = std::min(least, 1 + best(at, left & ~(1U << e), contents | 1U << e));
        continue;
      }
      for (std::uint32_t victim = 0; victim < experts; ++victim) {
        if ((contents >> victim & 1U) == 0) continue;
        least = std::min(least, 1 + best(at, left & ~(1U << e), (contents & ~(1U << victim)) | 1U << e));
      }
    }
    return known[key] = least;
  };
  std::uint64_t least = none;
  for (unsigned start = 0; start < 1U << experts; ++start) {
    if (static_cast<std::uint32_t>(std::popcount(start)) != std::min(slots, experts)) continue;
    unsigned first = 0;
    for (const auto e : asked[0].experts) first |= 1U << e;
    least = std::min(least, best(0, first, start));
  }
  return least;
}

/// The optimum if an expert may leave as soon as it has run, even though all slots keep others: after each set any `slots` of
/// what was there or was used stay. Tries all contents.
std::uint64_t brute_force_passing(const std::vector<AskedFor>& asked, std::uint32_t experts, std::uint32_t slots) {
  constexpr std::uint64_t none = 1'000'000;
  std::vector<std::uint64_t> least(std::size_t{1} << experts, none);  // copies so far, by contents
  auto fits = [&](unsigned contents) { return static_cast<std::uint32_t>(std::popcount(contents)) <= slots; };
  for (unsigned c = 0; c < least.size(); ++c) least[c] = fits(c) ? 0 : none;
  for (const AskedFor& a : asked) {
    unsigned set = 0;
    for (const auto e : a.experts) set |= 1U << e;
    std::vector<std::uint64_t> next(least.size(), none);
    for (unsigned c = 0; c < least.size(); ++c) {
      const auto copies = static_cast<std::uint64_t>(std::popcount(set & ~c));
      for (unsigned kept = 0; kept < least.size(); ++kept) {
        if ((kept & ~(c | set)) == 0 && fits(kept)) next[kept] = std::min(next[kept], least[c] + copies);
      }
    }
    least = std::move(next);
  }
  return *std::min_element(least.begin(), least.end());
}

std::vector<AskedFor> random_sets(Random& random, std::uint32_t experts) {
  std::vector<AskedFor> asked;
  for (std::uint32_t i = random.between(1, 6); i > 0; --i) {
    std::set<std::uint16_t> s;
    for (std::uint32_t j = random.between(1, 3); j > 0; --j)
      s.insert(static_cast<std::uint16_t>(random.below(experts)));
    asked.push_back({0, {s.begin(), s.end()}});
  }
  return asked;
}

}  // namespace

TEST_CASE("by hand") {
  // One slot, a b a b: from empty a is copied and kept, b is copied twice and never kept: 3, less the free start.
  CHECK(fewest(ask({{0}, {1}, {0}, {1}}), 1) == 2);
  // Order within a set is free: {a b} {b a} with one slot needs a, b, (b stays) a: 3 from empty, one of them free.
  CHECK(fewest(ask({{0, 1}, {1, 0}}), 1) == 2);
  CHECK(fewest(ask({{0, 1}, {2, 3}, {0, 1}}), 4) == 0);
  CHECK(fewest({}, 4) == 0);
}

TEST_CASE("layers are apart: the same index in another layer is another expert") {
  CHECK(fewest({{0, {5}}, {1, {5}}, {0, {5}}, {1, {5}}}, 1) == 2);
}

TEST_CASE("never above the true optimum, on every small random case") {
  Random random(7);
  std::uint64_t tight = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const std::uint32_t experts = random.between(2, 5), slots = random.between(1, 3);
    const std::vector<AskedFor> asked = random_sets(random, experts);
    const std::uint64_t bound = fewest(asked, slots), truth = brute_force(asked, experts, slots);
    CHECK(bound <= truth);
    tight += bound == truth ? 1 : 0;
  }
  CHECK(tight > 100);  // the bound is often reached, so it says something
}

TEST_CASE("exactly the optimum where an expert may leave as soon as it has run, on every small random case") {
  Random random(8);
  for (int trial = 0; trial < 400; ++trial) {
    const std::uint32_t experts = random.between(2, 5), slots = random.between(1, 3);
    const std::vector<AskedFor> asked = random_sets(random, experts);
    CHECK(fewest(asked, slots) == brute_force_passing(asked, experts, slots));
  }
}

TEST_CASE("precisions are served by different copies") {
  // Full: a b a b behind one slot, 2 as above. INT4: a c a c behind two slots, which hold both from the start.
  UseLog log;
  for (int i = 0; i < 2; ++i) {
    for (const Variant v : {Variant{{0, 0}, Precision::full}, Variant{{0, 0}, Precision::int4},
                            Variant{{0, 1}, Precision::full}, Variant{{0, 2}, Precision::int4}}) {
      log.add(v);
      log.end_layer();
    }
  }
  CHECK(fewest_copies(log, Precision::full, 1) == 2);
  CHECK(fewest_copies(log, Precision::int4, 2) == 0);
  CHECK(fewest_copies(log, Precision::int4, 1) == 2);
  CHECK(fewest_copies(log, Precision::int8, 1) == 0);
}

TEST_CASE("work of the longest time has a bound of the longest time") {
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max();
  WorkDone work;
  work.compute = work.copies = most;
  work.uses = 3;
  work.least_host = most / 2;
  CHECK(clairvoyant_ns(work) == most);
  CHECK(clairvoyant_with_host_ns(work) == most);
}
