#include "ferry/detail/cached_slots.hpp"

#include <doctest/doctest.h>

#include <new>

#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

using Slots = detail::CachedSlots<stacks::CrossLayerLru>;

/// Two layers of 4 experts; a pool of 2 slots over both, and 2 stream slots.
struct SlotsFixture {
  SlotsFixture() {
    const ModelShape m = model(2, 4, 1, 1, 100);
    Carver carve(block + 2048);
    slots.reserve(carve, m, {{{0, 2, part::bit(Precision::full), 2, 128}}, 2, 128}, Lru{}, 1, -1.0F);
    const std::uint32_t sequence = 0;
    slots.begin_step({Phase::decode, {&sequence, 1}}, false);
  }
  std::uint32_t room(Variant what, std::uint8_t bars) {
    std::uint16_t closed = Residency::no_pool;
    return slots.make_room(what, bars, closed);
  }
  const Counters& counters() const { return slots.accounts().counters(); }

  alignas(64) std::byte block[8192];
  Slots& slots = *new (block) Slots;
};

}  // namespace

TEST_CASE("room: free slots first, then the victim's, whose queued copy is taken back") {
  SlotsFixture f;
  CHECK(f.room(full(0, 0), Residency::for_demand) == 0);
  f.slots.admit(0, full(0, 0), true);
  CHECK(f.room(full(0, 1), Residency::for_prefetch) == 1);
  f.slots.admit(1, full(0, 1), false);
  f.slots.begin_call();
  CHECK(f.room(full(1, 2), Residency::for_prefetch) == no_slot);  // one in flight, one queued
  CHECK(f.room(full(1, 2), Residency::for_demand) == 1);
  CHECK(f.slots.commands().drop.size == 1);
  CHECK(f.counters().prefetch.dropped == 1);
  CHECK(f.counters().prefetch.wasted_bytes == 0);  // nothing was moved
}

TEST_CASE("a prefetch that landed and is evicted unused is wasted, a used one is not") {
  for (const bool used : {false, true}) {
    SlotsFixture f;
    for (std::uint16_t e = 0; e < 2; ++e) f.slots.admit(f.room(full(0, e), Residency::for_demand), full(0, e), false);
    f.slots.begin_call({Ticket{100}, Ticket{101}, Ticket{101}});
    if (used) f.slots.use(0);
    if (used) f.slots.use(1);
    CHECK(f.counters().prefetch.used == (used ? 2 : 0));
    CHECK(f.room(full(1, 2), Residency::for_demand) == 0);
    CHECK(f.counters().prefetch.wasted_bytes == (used ? 0 : 100));
  }
}

TEST_CASE("a queued prefetch becomes demand in its slot, those of a planned layer are taken back") {
  SlotsFixture f;
  for (std::uint16_t e = 0; e < 2; ++e) f.slots.admit(f.room(full(1, e), Residency::for_demand), full(1, e), false);
  f.slots.begin_call();
  f.slots.expedite(1);
  f.slots.lease(1);
  f.slots.drop_stale(1);
  REQUIRE(f.slots.commands().drop.size == 2);
  REQUIRE(f.slots.commands().submit.size == 1);
  CHECK(f.slots.commands().submit[0].demand);
  CHECK(f.slots.commands().submit[0].slot == 1);
  CHECK(f.slots.residency().slot(0).state == State::absent);
  CHECK(f.slots.residency().has_free(0));
  CHECK(f.counters().prefetch.issued == 0);
  CHECK(f.counters().prefetch.dropped == 2);
}

TEST_CASE("stream slots come in turn, behind the cached ones") {
  SlotsFixture f;
  CHECK(f.slots.free_stream_slot() == 2);
  CHECK(f.slots.free_stream_slot() == 3);
  CHECK(f.slots.free_stream_slot() == 2);
  f.slots.take_turn(2);
  f.slots.lease(3);
  CHECK(f.slots.free_stream_slot() == 2);  // 3 has a task
  f.slots.lease(2);
  CHECK(f.slots.free_stream_slot() == no_slot);
}

TEST_CASE("the victim of the second pool is a slot of the second pool") {
  // Two layers with a pool of 2 slots each, and 2 stream slots.
  alignas(64) static std::byte block[8192];
  Slots& slots = *new (block) Slots;
  Carver carve(block + 2048);
  const std::uint8_t whole = part::bit(Precision::full);
  slots.reserve(carve, model(2, 4, 1, 1, 100), {{{0, 1, whole, 2, 128}, {1, 1, whole, 2, 128}}, 2, 128}, Lru{}, 1,
                -1.0F);
  const std::uint32_t sequence = 0;
  slots.begin_step({Phase::decode, {&sequence, 1}}, false);
  std::uint16_t closed = Residency::no_pool;
  for (std::uint16_t l = 0; l < 2; ++l) {
    for (std::uint16_t e = 0; e < 2; ++e) {
      const std::uint32_t slot = slots.make_room(full(l, e), Residency::for_demand, closed);
      CHECK(slot == 2U * l + e);
      slots.admit(slot, full(l, e), true);
    }
  }
  slots.begin_call({Ticket{100}, Ticket{101}, Ticket{101}});
  slots.use(2);  // so that slot 3 was used longest ago
  CHECK(slots.make_room(full(1, 2), Residency::for_demand, closed) == 3);
  CHECK(slots.residency().slot(3).state == State::absent);
  CHECK(slots.residency().slot(1).state == State::resident);
}

namespace {

/// Counts finished layers across pools, and says whether each miss gains.
struct Learner : Lru {
  FERRY_HD void finished(std::uint16_t /*layer*/) noexcept { ++ended; }
  FERRY_HD void goes_on(const Learner& before) noexcept { ended = before.ended; }
  FERRY_HD Nanoseconds gain(const Request& miss) const noexcept { return 10 * (1 + miss.want.id.expert); }
  FERRY_HD bool each_gains() const noexcept { return all_gain; }
  std::uint32_t ended = 0;
  bool all_gain = false;
};
using LearnerSlots = detail::CachedSlots<Stack<NoPrediction, Learner, FixedPrecision, stacks::LoadEverything, TopK>>;

}  // namespace

TEST_CASE("what a pool's policy learned goes on to the next, and from the last to the first") {
  alignas(64) static std::byte block[8192];
  LearnerSlots& slots = *new (block) LearnerSlots;
  Carver carve(block + 2048, sizeof block - 2048);
  const std::uint8_t whole = part::bit(Precision::full);
  slots.reserve(carve, model(3, 4, 1, 1, 100),
                {{{0, 1, whole, 2, 128}, {1, 1, whole, 2, 128}, {2, 1, whole, 2, 128}}, 2, 128}, Learner{}, 1, -1.0F);
  for (std::uint32_t n = 0; n < 7; ++n) {
    slots.finished(static_cast<std::uint16_t>(n % 3));
    CHECK(slots.cache(static_cast<std::uint16_t>(n % 3)).ended == n + 1);
    CHECK(slots.cache(static_cast<std::uint16_t>((n + 1) % 3)).ended == n + 1);
  }
}

TEST_CASE("of misses that would gain one place the first does, if the policy says so") {
  for (const bool all_gain : {false, true}) {
    alignas(64) std::byte block[8192];
    LearnerSlots& slots = *new (block) LearnerSlots;
    Carver carve(block + 2048, sizeof block - 2048);
    Learner policy;
    policy.all_gain = all_gain;
    slots.reserve(carve, model(2, 4, 1, 1, 100), {{{0, 2, part::bit(Precision::full), 2, 128}}, 2, 128}, policy, 1,
                  -1.0F);
    Request misses[3];
    for (std::uint16_t e = 0; e < 3; ++e) {
      misses[e].want = full(1, static_cast<std::uint16_t>(2 - e));
      misses[e].gain_ns = 30 - 10 * e;
    }
    const View<Request> shared = slots.share_gain({misses, 3});
    REQUIRE(shared.size == 3);
    CHECK(shared[0].gain_ns == 30);
    CHECK(shared[1].gain_ns == (all_gain ? 20 : 0));
    CHECK(shared[2].gain_ns == (all_gain ? 10 : 0));
    CHECK(slots.share_gain({misses, 1})[0].gain_ns == 30);
  }
}
