#include "ferry/cache/sieve.hpp"

#include <doctest/doctest.h>

#include <list>

#include "support/cache_simulator.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// SIEVE as its paper's Algorithm 1 prints it, on experts, with nothing barred.
class PrintedSieve {
 public:
  explicit PrintedSieve(std::size_t capacity) : capacity_(capacity) {}

  bool ask(std::uint16_t x) {
    for (Object& o : queue_) {
      if (o.expert == x) return o.visited = true;
    }
    if (queue_.size() == capacity_) {
      auto o = hand_ == queue_.end() ? tail() : hand_;
      while (o->visited) {
        o->visited = false;
        o = o == queue_.begin() ? tail() : std::prev(o);
      }
      hand_ = o == queue_.begin() ? queue_.end() : std::prev(o);
      queue_.erase(o);
    }
    queue_.push_front({x, false});
    return false;
  }

 private:
  struct Object {
    std::uint16_t expert;
    bool visited;
  };
  std::list<Object>::iterator tail() { return std::prev(queue_.end()); }

  std::list<Object> queue_;  ///< head first
  std::list<Object>::iterator hand_ = queue_.end();
  std::size_t capacity_;
};

/// Slots 0, 1, ... filled in this order: 0 is the tail.
Placed<Sieve> filled(std::uint32_t slots) {
  Placed<Sieve> sieve(PoolShape{slots, 0, 1, 16});
  for (std::uint32_t s = 0; s < slots; ++s) sieve->replace(s, full(0, static_cast<std::uint16_t>(s)), true);
  return sieve;
}

}  // namespace

TEST_CASE("the hand passes visited slots, clears them and stays where it is") {
  auto sieve = filled(4);
  const std::uint8_t none[4] = {};
  const auto victim = [&] { return sieve->victim(full(0, 9), {none, 1}); };
  CHECK(victim() == 0);  // nothing visited: the tail
  sieve->touch(full(0, 0), 0);
  sieve->touch(full(0, 1), 1);
  CHECK(victim() == 2);
  sieve->replace(2, full(0, 9), true);  // clears 0 and 1, the hand is at 3; tail to head: 0 1 3 2
  sieve->touch(full(0, 3), 3);
  CHECK(victim() == 2);  // 3 is visited, 2 is the head; 0 and 1 would come after
  sieve->touch(full(0, 9), 2);
  CHECK(victim() == 0);                  // beyond the head the tail is next, its bit was cleared
  sieve->replace(0, full(0, 10), true);  // clears 3 and 2, the hand is at 1: 1 3 2 0
  CHECK(victim() == 1);
}

TEST_CASE("when all are visited the hand takes the slot it started from, and no bit is left") {
  auto sieve = filled(3);
  const std::uint8_t none[3] = {};
  sieve->replace(0, full(0, 9), true);  // tail to head: 1 2 0, the hand is at 1
  for (std::uint32_t s = 0; s < 3; ++s) sieve->touch(full(0, 9), s);
  CHECK(sieve->victim(full(0, 10), {none, 1}) == 1);
  sieve->replace(1, full(0, 10), true);  // 2 0 1, the hand is at 2
  CHECK(sieve->victim(full(0, 11), {none, 1}) == 2);
  sieve->replace(2, full(0, 11), true);
  CHECK(sieve->victim(full(0, 12), {none, 1}) == 0);
}

TEST_CASE("after the head was evicted the hand begins at the tail") {
  auto sieve = filled(3);
  const std::uint8_t none[3] = {};
  sieve->touch(full(0, 0), 0);
  sieve->touch(full(0, 1), 1);
  CHECK(sieve->victim(full(0, 9), {none, 1}) == 2);
  sieve->replace(2, full(0, 9), true);
  CHECK(sieve->victim(full(0, 10), {none, 1}) == 0);
}

TEST_CASE("the hand passes over barred slots, visited or not") {
  auto sieve = filled(4);
  const std::uint8_t flags[4] = {1, 0, 0, 0};
  sieve->touch(full(0, 1), 1);
  CHECK(sieve->victim(full(0, 9), {flags, 1}) == 2);
  sieve->replace(2, full(0, 9), true);  // the hand is at 3: 0 1 3 2
  for (const std::uint32_t s : {1U, 2U, 3U}) sieve->touch(full(0, 9), s);
  const std::uint8_t hand[4] = {1, 0, 0, 1};
  CHECK(sieve->victim(full(0, 9), {hand, 1}) == 2);  // all candidates are visited: the first from the hand on
  const std::uint8_t all[4] = {1, 1, 1, 1};
  CHECK(sieve->victim(full(0, 9), {all, 1}) == no_slot);
}

TEST_CASE("a prefetch enters the sieve unvisited, and a slot taken back leaves the queue") {
  auto sieve = filled(3);
  const std::uint8_t none[3] = {};
  const auto victim = [&] { return sieve->victim(full(0, 9), {none, 1}); };
  sieve->replace(0, full(0, 9), false);  // 1 2 0, the hand is at 1
  sieve->touch(full(0, 1), 1);
  sieve->touch(full(0, 2), 2);
  CHECK(victim() == 0);
  sieve->forget(1);  // where the hand is: it goes on to 2
  CHECK(victim() == 0);
  sieve->replace(1, full(0, 10), true);  // 2 0 1
  CHECK(victim() == 0);
  sieve->forget(0);
  sieve->forget(2);
  CHECK(victim() == 1);
  sieve->forget(1);
  CHECK(victim() == no_slot);
}

TEST_CASE("hits what SIEVE's printed algorithm hits") {
  Random random(11);
  for (const std::uint32_t slots : {1U, 2U, 3U, 7U, 20U}) {
    CAPTURE(slots);
    Placed<Sieve> cache(PoolShape{slots, 0, 1, 64});
    CacheSimulator<Sieve> ours(cache, slots);
    PrintedSieve printed(slots);
    std::uint32_t hits = 0;
    for (int i = 0; i < 10000; ++i) {
      const std::uint32_t range = random.between(1, 40);
      const auto expert = static_cast<std::uint16_t>(random.below(range));
      const bool hit = printed.ask(expert);
      hits += hit ? 1 : 0;
      REQUIRE(ours.ask({0, expert}) == hit);
    }
    CHECK(hits > 300);
    CHECK(hits < 9900);
  }
}
