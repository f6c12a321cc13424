#include "ferry/cache/belady.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ferry/cache/arc.hpp"
#include "ferry/cache/fifo.hpp"
#include "ferry/cache/fld.hpp"
#include "ferry/cache/lfu.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/lru.hpp"
#include "ferry/cache/multidimensional.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/score_average.hpp"
#include "ferry/cache/score_window.hpp"
#include "ferry/cache/sieve.hpp"
#include "ferry/cache/static.hpp"
#include "support/cache_simulator.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

Belady knowing(const std::vector<ExpertId>& future) {
  Belady policy;
  policy.future = {future.data(), static_cast<std::uint32_t>(future.size())};
  return policy;
}

std::uint32_t most_hits(std::uint32_t slots, PoolShape pool, const std::vector<ExpertId>& requests) {
  pool.slots = slots;
  Placed<Belady> cache(pool, knowing(requests));
  REQUIRE(cache.measured);
  REQUIRE(broken(*cache) == "");
  const std::uint32_t most = hits(cache, slots, requests);
  REQUIRE(broken(*cache) == "");
  return most;
}

/// The most hits that any sequence of keeping, evicting and refusing gives.
class Exhaustive {
 public:
  Exhaustive(std::uint32_t slots, const std::vector<ExpertId>& requests) : slots_(slots), requests_(requests) {}

  std::uint32_t best(std::size_t from = 0, const std::set<std::uint16_t>& held = {}) {
    if (from == requests_.size()) return 0;
    const auto [known, fresh] = seen_.try_emplace({from, held}, 0);
    if (!fresh) return known->second;
    const std::uint16_t asked = requests_[from].expert;
    std::uint32_t most = 0;
    if (held.count(asked) != 0) {
      most = 1 + best(from + 1, held);
    } else {
      most = best(from + 1, held);  // refused
      std::set<std::uint16_t> kept = held;
      kept.insert(asked);
      if (held.size() < slots_) most = std::max(most, best(from + 1, kept));
      for (const std::uint16_t evicted : held) {
        kept.erase(evicted);
        most = std::max(most, best(from + 1, kept));
        kept.insert(evicted);
      }
    }
    return seen_[{from, held}] = most;
  }

 private:
  std::uint32_t slots_;
  const std::vector<ExpertId>& requests_;
  std::map<std::pair<std::size_t, std::set<std::uint16_t>>, std::uint32_t> seen_;
};

}  // namespace

TEST_CASE("the expert that is needed last goes, never again before all, then the lower slot") {
  const auto future = requests_for({0, 1, 2, 3, 1, 0, 2, 3, 1});
  Placed<Belady> cache(PoolShape{3, 0, 1, 8}, knowing(future));
  const std::uint8_t none[3] = {};
  for (std::uint16_t e = 0; e < 3; ++e) {
    cache->touch(full(0, e), no_slot);
    cache->replace(e, full(0, e), true);
  }
  cache->touch(full(0, 3), no_slot);  // next uses: 0 at 5, 1 at 4, 2 at 6, 3 at 7
  CHECK(cache->victim(full(0, 3), {none, 1}) == no_slot);
  CHECK(cache->victim(full(0, 1), {none, 1}) == 2);
  const std::uint8_t barred[3] = {0, 0, 1};
  CHECK(cache->victim(full(0, 1), {barred, 1}) == 0);
  cache->touch(full(0, 1), 1);  // 1 is needed again at 8
  CHECK(cache->victim(full(0, 3), {none, 1}) == 1);
  cache->touch(full(0, 0), 0);  // never again
  CHECK(cache->victim(full(0, 3), {none, 1}) == 0);
  cache->touch(full(0, 2), 2);  // never again: the lower slot of the two
  CHECK(cache->victim(full(0, 3), {none, 1}) == 0);
  CHECK(cache->victim(full(0, 7), {none, 1}) == 0);  // what comes is never used again either: kept
  const std::uint8_t all[3] = {1, 1, 1};
  CHECK(cache->victim(full(0, 3), {all, 1}) == no_slot);
}

TEST_CASE("the order of touches within a layer does not matter to the clairvoyant cache") {
  const auto future = requests_for({0, 1, 2, 1, 2, 0});
  const std::uint8_t none[3] = {};
  std::vector<std::uint16_t> order{0, 1, 2};
  do {
    Placed<Belady> cache(PoolShape{3, 0, 1, 8}, knowing(future));
    for (const std::uint16_t e : order) {
      cache->touch(full(0, e), no_slot);
      cache->replace(e, full(0, e), true);
    }
    CHECK(cache->victim(full(0, 1), {none, 1}) == 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("the clairvoyant cache passes over other pools' layers and the end of what it was told") {
  // Of layers 2 and 3 it is told {2,1} {3,0} {3,1} {2,1}.
  const std::vector<ExpertId> future{{1, 0}, {2, 1}, {3, 0}, {4, 1}, {3, 1}, {2, 1}, {9, 0}};
  Placed<Belady> cache(PoolShape{2, 2, 2, 2}, knowing(future));
  CHECK(cache.measured);
  CHECK(cache->future.size == 0);  // the host's list is not kept
  const std::uint8_t none[2] = {};
  cache->replace(0, full(3, 0), true);
  cache->replace(1, full(3, 1), true);
  CHECK(cache->victim(full(2, 1), {none, 1}) == 1);
  cache->touch(full(3, 0), 0);
  CHECK(cache->victim(full(2, 1), {none, 1}) == 0);
  cache->replace(0, full(2, 1), true);
  for (int i = 0; i < 3; ++i) cache->touch(full(2, 1), 0);  // one use more than it was told of
  cache->replace(0, full(3, 1), true);
  cache->replace(1, full(2, 1), true);
  CHECK(cache->victim(full(3, 1), {none, 1}) == 1);
}

TEST_CASE("uses in the layers on either side of the pool take none of its room") {
  const auto bytes = [](const std::vector<ExpertId>& future) {
    Belady policy = knowing(future);
    Carver measure;
    policy.reserve(measure, PoolShape{2, 2, 2, 2});
    return measure.bytes();
  };
  CHECK(bytes(std::vector<ExpertId>(200, ExpertId{1, 0})) == bytes({}));
  CHECK(bytes(std::vector<ExpertId>(200, ExpertId{4, 1})) == bytes({}));
  CHECK(bytes(std::vector<ExpertId>(200, ExpertId{3, 1})) >= bytes({}) + 800);
}

TEST_CASE("a future with an expert that the model lacks is refused") {
  const std::vector<ExpertId> future{{0, 1}, {7, 8}};
  CHECK_THROWS_WITH_AS((Placed<Belady>(PoolShape{3, 0, 1, 8}, knowing(future))),
                       "Belady: future[1] is expert 8, the model has experts 0 to 7", ConfigError);
}

TEST_CASE("Belady finds the most hits of all ways to evict and refuse") {
  Random random(4);
  for (int i = 0; i < 1500; ++i) {
    const std::uint32_t slots = random.between(1, 4);
    const std::uint32_t keys = random.between(1, 6);
    const std::uint32_t length = random.between(1, 12);
    std::vector<std::uint16_t> list(length);
    for (std::uint16_t& e : list) e = static_cast<std::uint16_t>(random.below(keys));
    const auto requests = requests_for(list);
    CAPTURE(i);
    CHECK(most_hits(slots, PoolShape{0, 0, 1, 6}, requests) == Exhaustive(slots, requests).best());
  }
}

TEST_CASE_TEMPLATE("no cache policy beats Belady on sequential demand fetch", Cache, RandomVictim, FifoCache, Sieve,
                   Arc, Lru, Lfu, Lhu, Fld, Multidimensional, ScoreWindow, ScoreAverage, StaticResidency) {
  constexpr std::uint16_t layers = 3, per_layer = 16;
  constexpr std::uint32_t length = 3000;
  Random random(8);
  const auto id = [](std::uint32_t key) {
    return ExpertId{static_cast<std::uint16_t>(key / per_layer), static_cast<std::uint16_t>(key % per_layer)};
  };
  std::vector<ExpertId> uniform, zipf, scan;
  std::uint32_t weights = 0;
  for (std::uint32_t key = 0; key < layers * per_layer; ++key) weights += 100000 / (key + 1);
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint32_t any = random.below(layers * per_layer);
    uniform.push_back(id(any));
    std::uint32_t mark = random.below(weights);
    std::uint32_t key = 0;
    for (; mark >= 100000 / (key + 1); ++key) mark -= 100000 / (key + 1);
    zipf.push_back(id(key));
    scan.push_back(random.chance(50) ? id(key % 8) : id(i % (layers * per_layer)));  // a hot set beside it
  }
  for (const auto* requests : {&uniform, &zipf, &scan}) {
    for (const std::uint32_t slots : {1U, 2U, 5U, 12U, 30U, 47U, 48U}) {
      CAPTURE(slots);
      const PoolShape pool{slots, 0, layers, per_layer};
      Placed<Cache> cache(pool);
      const std::uint32_t online = hits(cache, slots, *requests);
      const std::uint32_t most = most_hits(slots, pool, *requests);
      CHECK(online <= most);
      if (slots == layers * per_layer) CHECK(online == most);  // each expert is fetched once
    }
  }
}
