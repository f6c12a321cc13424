#include "ferry/cache/arc.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/arc_oracle.hpp"
#include "support/policies.hpp"
#include "support/quick.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// A cache of numbers with Arc as its policy (number k is expert k % experts of layer k / experts of the pool). It makes the
/// calls that the core would make: the lowest free slot first, and victims when there is none.
class Cache {
 public:
  explicit Cache(const PoolShape& pool)
      : pool_(pool),
        arc_(pool),
        slot_of_(std::size_t{pool.layers} * pool.experts, no_slot),
        holds_(pool.slots),
        occupied_(pool.slots, false),
        flags_(pool.slots, 0) {}

  struct Outcome {
    bool hit = false;
    std::optional<std::uint64_t> evicted;
    bool operator==(const Outcome&) const = default;
  };

  /// The gate asks for `key`; a miss loads it unless `load` is false (the host computes it, say).
  Outcome access(std::uint32_t key, bool load = true) {
    arc_->touch(variant(key), slot_of_[key]);
    if (slot_of_[key] != no_slot) return {true, {}};
    return load ? insert(key, true) : Outcome{};
  }

  /// Admits `key`, which is absent, if it gets a slot.
  Outcome insert(std::uint32_t key, bool demand) {
    const auto free = std::find(occupied_.begin(), occupied_.end(), false);
    std::uint32_t slot = static_cast<std::uint32_t>(free - occupied_.begin());
    Outcome outcome;
    if (free == occupied_.end()) {
      slot = victim(key);
      if (slot == no_slot) return {};
      outcome.evicted = holds_[slot];
      slot_of_[holds_[slot]] = no_slot;
    }
    holds_[slot] = key;
    occupied_[slot] = true;
    slot_of_[key] = slot;
    arc_->replace(slot, variant(key), demand);
    return outcome;
  }

  /// Asks for a victim of a full pool, and checks what can be checked of any answer.
  std::uint32_t victim(std::uint32_t key) {
    const std::uint32_t slot = arc_->victim(variant(key), {flags_.data(), 1});
    if (slot == no_slot) {
      if (std::count(flags_.begin(), flags_.end(), 1) != static_cast<std::ptrdiff_t>(flags_.size())) {
        FAIL("no victim, although a slot is not barred");
      }
    } else if (slot >= flags_.size() || flags_[slot] == 1) {
      FAIL("slot ", slot, " is no victim");
    }
    return slot;
  }

  /// Takes back the copy that brings the expert in this slot.
  void forget(std::uint32_t slot) {
    slot_of_[holds_[slot]] = no_slot;
    occupied_[slot] = false;
    arc_->forget(slot);
  }

  /// [slots] 1: must not be evicted.
  std::vector<std::uint8_t>& bars() { return flags_; }
  bool has(std::uint32_t key) const { return slot_of_[key] != no_slot; }
  std::uint32_t slot(std::uint32_t key) const { return slot_of_[key]; }
  bool occupied(std::uint32_t slot) const { return occupied_[slot]; }
  bool full() const { return std::find(occupied_.begin(), occupied_.end(), false) == occupied_.end(); }

 private:
  Variant variant(std::uint32_t key) const {
    return ferry::test::full(static_cast<std::uint16_t>(pool_.first_layer + key / pool_.experts),
                             static_cast<std::uint16_t>(key % pool_.experts));
  }

  PoolShape pool_;
  Placed<Arc> arc_;
  std::vector<std::uint32_t> slot_of_;  ///< by key
  std::vector<std::uint32_t> holds_;    ///< by slot
  std::vector<bool> occupied_;
  std::vector<std::uint8_t> flags_;
};

// Sequences worked by hand from Figure 4 of the paper.

/// One access, and the four lists after it, most recently used first. `out`: the key that left the cache.
struct Line {
  char key;
  bool hit;
  char out;
  std::string t1, t2, b1, b2;
  double p;
};
constexpr bool hit = true, miss = false;
constexpr char nobody = '-';

std::string text(const ArcOracle::Keys& keys) {
  std::string s;
  for (const std::uint64_t k : keys) s += static_cast<char>(k);
  return s;
}

void check_lines(std::uint32_t c, const std::vector<Line>& lines) {
  ArcOracle oracle(c);
  Cache cache({c, 2, 1, 128});
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    CAPTURE(i);
    CAPTURE(line.key);
    std::optional<std::uint64_t> out;
    if (line.out != nobody) out = static_cast<std::uint64_t>(line.out);

    CHECK(oracle.access(static_cast<std::uint64_t>(line.key)) == line.hit);
    CHECK(oracle.evicted() == out);
    CHECK(text(oracle.t1()) == line.t1);
    CHECK(text(oracle.t2()) == line.t2);
    CHECK(text(oracle.b1()) == line.b1);
    CHECK(text(oracle.b2()) == line.b2);
    CHECK(oracle.p() == line.p);

    const Cache::Outcome outcome = cache.access(static_cast<std::uint32_t>(line.key));
    CHECK(outcome.hit == line.hit);
    CHECK(outcome.evicted == out);
  }
}

}  // namespace

TEST_CASE("ARC with two slots does what was worked out by hand") {
  check_lines(2, {
                     {'a', miss, nobody, "a", "", "", "", 0},
                     {'b', miss, nobody, "ba", "", "", "", 0},
                     {'a', hit, nobody, "b", "a", "", "", 0},  // I: seen twice, so T2
                     // IV B: |L1| = 1, |L1| + |L2| = 2 = c, so REPLACE. |T1| = 1 > p = 0: the last of T1.
                     {'c', miss, 'b', "c", "a", "b", "", 0},
                     // II: |B1| = 1 >= |B2| = 0, p = 0 + 1. |T1| = 1 is not above p: the last of T2.
                     {'b', miss, 'a', "c", "b", "", "a", 1},
                     // III: |B2| = 1 >= |B1| = 0, p = 1 - 1. |T1| = 1 > 0: the last of T1.
                     {'a', miss, 'c', "", "ab", "c", "", 0},
                     // IV B: |L1| = 1, sum 3. T1 is empty: the last of T2.
                     {'d', miss, 'b', "d", "a", "c", "b", 0},
                     // IV A: |L1| = 2 = c and |T1| = 1 < c: c is forgotten; |T1| > p: the last of T1.
                     {'e', miss, 'd', "e", "a", "d", "b", 0},
                     {'a', hit, nobody, "e", "a", "d", "b", 0},
                     {'e', hit, nobody, "", "ea", "d", "b", 0},
                     // IV B: |L1| = 1, sum 4 = 2c: b is forgotten. T1 is empty: the last of T2.
                     {'f', miss, 'a', "f", "e", "d", "a", 0},
                     // b is unknown again. IV A: |T1| = 1 < c: d is forgotten; |T1| > p: the last of T1.
                     {'b', miss, 'f', "b", "e", "f", "a", 0},
                 });
}

TEST_CASE("ARC forgets whom it evicts from a T1 that fills the cache") {
  check_lines(2, {
                     {'a', miss, nobody, "a", "", "", "", 0},
                     {'b', miss, nobody, "ba", "", "", "", 0},
                     {'c', miss, 'a', "cb", "", "", "", 0},  // IV A: |T1| = 2 = c: a leaves no ghost
                     {'a', miss, 'b', "ac", "", "", "", 0},  // so it is new once more
                     {'d', miss, 'c', "da", "", "", "", 0},  // IV A again: p is still 0, and c leaves no ghost either
                     {'a', hit, nobody, "d", "a", "", "", 0},
                 });
  check_lines(1, {
                     {'a', miss, nobody, "a", "", "", "", 0},
                     {'b', miss, 'a', "b", "", "", "", 0},
                     {'b', hit, nobody, "", "b", "", "", 0},
                     {'a', miss, 'b', "a", "", "", "b", 0},  // IV B: |L1| = 0, sum 1 = c; T1 is empty
                     {'b', miss, 'a', "", "b", "a", "", 0},  // III: p stays at 0; |T1| = 1 > 0
                     {'a', miss, 'b', "", "a", "", "b", 1},  // II: p = 1 = c; T1 is empty
                     {'c', miss, 'a', "c", "", "", "a", 1},  // IV B: sum 2 = 2c: b is forgotten; T1 is empty
                     {'d', miss, 'c', "d", "", "", "a", 1},  // IV A: |T1| = 1 = c: no ghost
                     {'a', miss, 'd', "", "a", "d", "", 0},  // III: p = 0; |T1| = 1 > 0
                 });
}

TEST_CASE("ARC with three slots does what was worked out by hand") {
  check_lines(3, {
                     {'a', miss, nobody, "a", "", "", "", 0},
                     {'b', miss, nobody, "ba", "", "", "", 0},
                     {'c', miss, nobody, "cba", "", "", "", 0},
                     {'a', hit, nobody, "cb", "a", "", "", 0},
                     {'b', hit, nobody, "c", "ba", "", "", 0},
                     {'d', miss, 'c', "d", "ba", "c", "", 0},  // IV B: |T1| = 1 > p = 0
                     {'d', hit, nobody, "", "dba", "c", "", 0},
                     {'e', miss, 'a', "e", "db", "c", "a", 0},  // IV B: T1 is empty
                     {'e', hit, nobody, "", "edb", "c", "a", 0},
                     {'f', miss, 'b', "f", "ed", "c", "ba", 0},
                     // II: |B1| = 1 < |B2| = 2, p = 0 + 2/1. |T1| = 1 is not above 2.
                     {'c', miss, 'd', "f", "ce", "", "dba", 2},
                     // IV B: |L1| = 1, sum 6 = 2c: a is forgotten. |T1| = 1 is not above 2.
                     {'g', miss, 'e', "gf", "c", "", "edb", 2},
                     {'h', miss, 'c', "hgf", "", "", "ced", 2},  // likewise b; |T1| = 2 is not above 2
                     {'i', miss, 'f', "ihg", "", "", "ced", 2},  // IV A: |T1| = 3 = c: no ghost
                     {'d', miss, 'g', "ih", "d", "g", "ce", 1},  // III: p = 2 - 1; |T1| = 3 > 1
                     {'e', miss, 'h', "i", "ed", "hg", "c", 0},  // III: |B2| = 2 >= |B1| = 1; |T1| = 2 > 0
                     {'g', miss, 'd', "i", "ge", "h", "dc", 1},  // II: p = 0 + 1; |T1| = 1 is not above 1, g not in B2
                     {'h', miss, 'e', "i", "hg", "", "edc", 3},  // II: |B1| = 1 < |B2| = 2, p = 1 + 2
                     {'j', miss, 'g', "ji", "h", "", "ged", 3},  // IV B: sum 2c: c is forgotten
                     {'d', miss, 'i', "j", "dh", "i", "ge", 2},  // III: p = 2 = |T1| and d is in B2: the last of T1
                     {'k', miss, 'h', "kj", "d", "i", "hg", 2},  // IV B: sum 2c: e is forgotten; |T1| = 1
                     {'i', miss, 'd', "kj", "i", "", "dhg", 3},  // II: p = min(2 + 2, 3)
                     {'h', miss, 'j', "k", "hi", "j", "dg", 2},  // III: p = 2 = |T1|
                     {'g', miss, 'k', "", "ghi", "kj", "d", 1},  // III: p = 1 = |T1|
                     {'d', miss, 'i', "", "dgh", "kj", "i", 0},  // III: |B2| = 1 < |B1| = 2, p = max(1 - 2, 0)
                 });
}

TEST_CASE("ARC keeps the fractions of p") {
  check_lines(5, {
                     {'a', miss, nobody, "a", "", "", "", 0},
                     {'b', miss, nobody, "ba", "", "", "", 0},
                     {'c', miss, nobody, "cba", "", "", "", 0},
                     {'d', miss, nobody, "dcba", "", "", "", 0},
                     {'e', miss, nobody, "edcba", "", "", "", 0},
                     {'a', hit, nobody, "edcb", "a", "", "", 0},
                     {'b', hit, nobody, "edc", "ba", "", "", 0},
                     {'c', hit, nobody, "ed", "cba", "", "", 0},
                     {'d', hit, nobody, "e", "dcba", "", "", 0},
                     {'e', hit, nobody, "", "edcba", "", "", 0},
                     {'f', miss, 'a', "f", "edcb", "", "a", 0},
                     {'g', miss, 'f', "g", "edcb", "f", "a", 0},
                     {'h', miss, 'g', "h", "edcb", "gf", "a", 0},
                     {'h', hit, nobody, "", "hedcb", "gf", "a", 0},
                     {'i', miss, 'b', "i", "hedc", "gf", "ba", 0},
                     {'i', hit, nobody, "", "ihedc", "gf", "ba", 0},
                     {'j', miss, 'c', "j", "ihed", "gf", "cba", 0},
                     // II: |B1| = 2 < |B2| = 3, p = 3/2. |T1| = 1 is not above it.
                     {'f', miss, 'd', "j", "fihe", "g", "dcba", 1.5},
                     {'k', miss, 'e', "kj", "fih", "g", "edcb", 1.5},  // IV B: sum 2c: a is forgotten
                     {'l', miss, 'j', "lk", "fih", "jg", "edc", 1.5},  // likewise b; |T1| = 2 > 3/2
                     // II: |B1| = 2 < |B2| = 3, p = 3/2 + 3/2. With p cut to whole numbers it would be 2 now ...
                     {'g', miss, 'h', "lk", "gfi", "j", "hedc", 3},
                     {'m', miss, 'i', "mlk", "gf", "j", "ihed", 3},
                     {'n', miss, 'f', "nmlk", "g", "j", "fihe", 3},  // ... and k would go here: |T1| = 3 is not above 3
                 });
}

TEST_CASE("a scan does not flush what ARC saw more than once") {
  // a and b are in T2. Each c, d, ... is seen once: |T1| = 1 > p = 0, so the one before it goes, whatever its number.
  Cache cache({3, 0, 1, 128});
  for (const std::uint32_t k : {0U, 1U, 0U, 1U, 2U}) cache.access(k);
  for (std::uint32_t k = 3; k < 100; ++k) {
    CHECK(cache.access(k) == Cache::Outcome{miss, k - 1});
  }
  CHECK(cache.access(0).hit);
  CHECK(cache.access(1).hit);
}

TEST_CASE("an expert that returns soon after its eviction makes ARC protect T1") {
  check_lines(4, {
                     {'a', miss, nobody, "a", "", "", "", 0},
                     {'b', miss, nobody, "ba", "", "", "", 0},
                     {'a', hit, nobody, "b", "a", "", "", 0},
                     {'b', hit, nobody, "", "ba", "", "", 0},
                     {'c', miss, nobody, "c", "ba", "", "", 0},
                     {'d', miss, nobody, "dc", "ba", "", "", 0},
                     {'e', miss, 'c', "ed", "ba", "c", "", 0},  // IV B: |T1| = 2 > 0
                     // II: p = 1; |T1| = 2 > 1 still
                     {'c', miss, 'd', "e", "cba", "d", "", 1},
                     // II: p = 2; |T1| = 1 is not above 2: from now on T2 pays
                     {'d', miss, 'a', "e", "dcb", "", "a", 2},
                     {'f', miss, 'b', "fe", "dc", "", "ba", 2},    // IV B: |T1| = 1
                     {'g', miss, 'c', "gfe", "d", "", "cba", 2},   // IV B: |T1| = 2 is not above 2
                     {'h', miss, 'e', "hgf", "d", "e", "cba", 2},  // IV B: sum 7; |T1| = 3 > 2
                     {'f', hit, nobody, "hg", "fd", "e", "cba", 2},
                 });
}

// A million accesses against the oracle.

namespace {

enum class Pattern { uniform, zipf_06, zipf_08, zipf_10, zipf_12, scans, loop, phases };

/// Draws keys below `keys` for a cache of `c` slots.
class Stream {
 public:
  Stream(Pattern pattern, std::uint32_t c, std::uint32_t keys, std::uint64_t seed)
      : pattern_(pattern), c_(c), keys_(keys), random_(seed) {
    const int tenths[] = {10, 6, 8, 10, 12, 10, 10, 10};
    double sum = 0;
    for (std::uint32_t rank = 1; rank <= keys; ++rank) {
      sum += std::pow(static_cast<double>(rank), -0.1 * tenths[static_cast<int>(pattern)]);
      cumulated_.push_back(sum);
    }
  }

  std::uint32_t next() {
    const std::uint32_t i = i_++;
    switch (pattern_) {
      case Pattern::uniform:
        return random_.below(keys_);
      case Pattern::zipf_06:
      case Pattern::zipf_08:
      case Pattern::zipf_10:
      case Pattern::zipf_12:
        return zipf();
      case Pattern::scans:
        return scan(i);
      case Pattern::loop:
        return loop(i);
      case Pattern::phases:
        break;
    }
    if (i % (8 * c_) == 0) {  // other habits, and other favourites
      phase_ = random_.below(4);
      shift_ = random_.below(keys_);
    }
    const std::uint32_t key = phase_ == 0   ? random_.below(c_ + 2)
                              : phase_ == 1 ? zipf()
                              : phase_ == 2 ? scan(i)
                                            : loop(i);
    return (key + shift_) % keys_;
  }

 private:
  std::uint32_t zipf() {
    const double at = random_.below(1U << 24) / static_cast<double>(1U << 24) * cumulated_.back();
    const auto rank = std::upper_bound(cumulated_.begin(), cumulated_.end(), at) - cumulated_.begin();
    return std::min(static_cast<std::uint32_t>(rank), keys_ - 1);
  }
  /// A hot set of about half the cache, and all other keys in turn.
  std::uint32_t scan(std::uint32_t i) {
    const std::uint32_t hot = c_ / 2 + 1;
    return random_.chance(50) ? random_.below(hot) : hot + i % (keys_ - hot);
  }
  /// Loops over a few more keys than fit, and now and then starts again.
  std::uint32_t loop(std::uint32_t i) {
    if (random_.below(10 * c_) == 0) start_ = i;
    return (i - start_) % (c_ + 1 + c_ / 8);
  }

  Pattern pattern_;
  std::uint32_t c_, keys_, i_ = 0, start_ = 0, phase_ = 0, shift_ = 0;
  Random random_;
  std::vector<double> cumulated_;
};

std::string name(const std::optional<std::uint64_t>& key) {
  return key ? std::to_string(*key) : "nobody";
}

/// Stops at the first access in which the two differ.
void compare(Pattern pattern, const PoolShape& pool, int accesses) {
  Cache cache(pool);
  ArcOracle oracle(pool.slots);
  Stream stream(pattern, pool.slots, std::uint32_t{pool.layers} * pool.experts, pool.slots + pool.layers);
  for (int i = 0; i < accesses; ++i) {
    const std::uint32_t key = stream.next();
    const double p = oracle.p();
    const Cache::Outcome want = {oracle.access(key), oracle.evicted()};
    const Cache::Outcome got = cache.access(key);
    if (got == want) continue;
    FAIL("pattern ", static_cast<int>(pattern), ", c ", pool.slots, ", layers ", pool.layers, ", access ", i, " of ",
         key, ": hit ", got.hit, ", evicts ", name(got.evicted), "; the paper: hit ", want.hit, ", evicts ",
         name(want.evicted), ", p from ", p, " to ", oracle.p());
  }
}

constexpr Pattern patterns[] = {Pattern::uniform, Pattern::zipf_06, Pattern::zipf_08, Pattern::zipf_10,
                                Pattern::zipf_12, Pattern::scans,   Pattern::loop,    Pattern::phases};

}  // namespace

TEST_CASE("ARC agrees with the paper's algorithm access for access, whatever the size of the cache") {
  for (std::uint32_t c = 1; c <= 64; c += quick() && c > 8 ? 7 : 1) {
    for (const Pattern pattern : patterns) {
      const auto experts = static_cast<std::uint16_t>(2 * c + 4);
      compare(pattern, {c, 0, 1, experts}, 800);
      compare(pattern, {c, 3, 4, static_cast<std::uint16_t>(experts / 4 + 1)}, 800);
    }
  }
}

TEST_CASE("ARC agrees with the paper's algorithm over long runs") {
  for (const std::uint32_t c : {7U, 16U, 33U, 64U}) {
    for (const Pattern pattern : patterns) compare(pattern, {c, 1, 3, static_cast<std::uint16_t>(c)}, 8000);
  }
}

// Cases that the paper does not have: bars, prefetches, misses that are not loaded, copies taken back.

namespace {

/// Checks that every slot of a full pool can become the victim: each is barred once named, and each is named once.
void check_all_come_up(Cache& cache, std::uint32_t incoming) {
  const std::vector<std::uint8_t> before = cache.bars();
  std::fill(cache.bars().begin(), cache.bars().end(), std::uint8_t{0});
  for (std::size_t i = 0; i < before.size(); ++i) cache.bars()[cache.victim(incoming)] = 1;
  CHECK(cache.victim(incoming) == no_slot);
  cache.bars() = before;
}

}  // namespace

TEST_CASE("ARC stays consistent under bars, prefetches, misses that are not loaded and copies taken back") {
  for (const std::uint32_t c : {1U, 2U, 3U, 8U, 21U}) {
    CAPTURE(c);
    const std::uint32_t keys = 3 * 2 * c;
    Cache cache({c, 5, 3, static_cast<std::uint16_t>(2 * c)});
    Random random(c);
    std::uint32_t absent = 0;
    for (int i = 0; i < 12000; ++i) {
      const std::uint32_t percent = 10 * random.below(11);  // now and then none or all
      for (std::uint8_t& f : cache.bars()) f = random.chance(percent) ? 1 : 0;
      const std::uint32_t key = random.chance(50) ? random.below(c + 1) : random.below(keys);
      const std::uint32_t what = random.below(10);
      if (what < 6) {
        cache.access(key);  // with all slots barred, touched but not loaded
      } else if (what == 6) {
        cache.access(key, false);
      } else if (what < 9) {
        if (!cache.has(key)) cache.insert(key, what == 7);  // untouched: a prefetch, or what a pool is filled with
      } else {
        const std::uint32_t slot = random.below(c);
        if (cache.occupied(slot)) cache.forget(slot);
      }
      while (cache.has(absent)) absent = (absent + 1) % keys;
      if (i % 16 == 0 && cache.full()) check_all_come_up(cache, absent);
    }
    // Without bars, and once all that is asked for fits, it is soon there, whatever happened before.
    std::fill(cache.bars().begin(), cache.bars().end(), std::uint8_t{0});
    for (std::uint32_t round = 0; round < 8; ++round) {
      for (std::uint32_t k = 0; k < c; ++k) cache.access(keys - 1 - k);
    }
    for (std::uint32_t k = 0; k < c; ++k) CHECK(cache.access(keys - 1 - k).hit);
  }
}

TEST_CASE("ARC asks for the same victim until something happens") {
  Cache cache({5, 0, 1, 16});
  Random random(3);
  for (int i = 0; i < 3000; ++i) {
    const std::uint32_t key = random.below(16);
    if (cache.full() && !cache.has(key)) {
      const std::uint32_t first = cache.victim(key);
      for (std::uint32_t other = 0; other < 16; ++other) {
        if (!cache.has(other)) cache.victim(other);
      }
      CHECK(cache.victim(key) == first);
    }
    cache.access(key);
  }
}

TEST_CASE("several experts of a step may miss before the first of them is loaded, and none evicts another") {
  // In the core's order: resident experts are touched and barred first, then each miss is touched, loaded and barred.
  Cache cache({8, 0, 2, 16});
  Random random(6);
  for (int step = 0; step < 4000; ++step) {
    std::set<std::uint32_t> wanted;
    while (wanted.size() < 4) {
      const std::uint32_t key = 16 * (static_cast<std::uint32_t>(step) % 2) + random.below(16);
      wanted.insert(random.chance(50) ? key / 4 * 4 : key);
    }
    std::vector<std::uint32_t> missed;
    cache.bars().assign(8, 0);
    for (const std::uint32_t key : wanted) {
      if (!cache.has(key)) {
        missed.push_back(key);
        continue;
      }
      cache.access(key);
      cache.bars()[cache.slot(key)] = 1;
    }
    for (const std::uint32_t key : missed) {
      cache.access(key);
      cache.bars()[cache.slot(key)] = 1;
    }
    for (const std::uint32_t key : wanted) CHECK(cache.has(key));
  }
}

TEST_CASE("ARC works with more slots than experts, and with none") {
  Cache roomy({9, 1, 2, 3});
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t k = 0; k < 6; ++k) CHECK(roomy.access(k) == Cache::Outcome{round > 0, {}});
  }
  Placed<Arc> empty(PoolShape{0, 0, 1, 4});
  for (std::uint16_t e = 0; e < 4; ++e) {
    empty->touch(full(0, e), no_slot);
    CHECK(empty->victim(full(0, e), {nullptr, 1}) == no_slot);
  }
}

TEST_CASE("ARC: a prefetch is no access") {
  using ferry::test::full;
  const std::uint8_t none[3] = {};
  ferry::test::Placed<ferry::Arc> arc(ferry::PoolShape{3, 0, 1, 8});
  arc->replace(0, full(0, 0), false);  // prefetched
  arc->replace(1, full(0, 1), false);
  CHECK(arc->size(ferry::Arc::t1) == 2);
  arc->touch(full(0, 0), 0);  // its first use counts as if it had been loaded for it: it is the most recent of T1
  CHECK(arc->size(ferry::Arc::t1) == 2);
  CHECK(arc->size(ferry::Arc::t2) == 0);
  arc->touch(full(0, 0), 0);  // its second
  CHECK(arc->size(ferry::Arc::t2) == 1);
  // T1: 1 (never used). Another miss fills the last slot, the next one evicts: 1 is the least recent of T1.
  arc->touch(full(0, 2), ferry::no_slot);
  arc->replace(2, full(0, 2), true);
  arc->touch(full(0, 3), ferry::no_slot);
  CHECK(arc->victim(full(0, 3), {none, 1}) == 1);
  arc->replace(1, full(0, 3), true);
  CHECK(arc->size(ferry::Arc::b1) == 0);  // it was never used: no ghost
  // T1: 3, 2. T2: 0. Evicting 2 leaves one; prefetched again it is no ghost any more, and its next use is a second one.
  arc->touch(full(0, 4), ferry::no_slot);
  CHECK(arc->victim(full(0, 4), {none, 1}) == 2);
  arc->replace(2, full(0, 4), true);
  CHECK(arc->size(ferry::Arc::b1) == 1);
  const std::uint32_t out = arc->victim(full(0, 2), {none, 1});
  arc->replace(out, full(0, 2), false);
  arc->touch(full(0, 2), out);
  CHECK(arc->size(ferry::Arc::t2) == 2);
}
