#include "ferry/residency.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <new>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// 2 layers, 4 experts, stored as full and INT4; slots 0-1 hold full, 2-3 INT4, 4-5 are the stream's.
struct TwoPrecisions {
  TwoPrecisions() {
    ModelShape m = model(2, 4, 1, 1, 64, 32);
    Allotment a;
    a.pools = {{0, 2, part::bit(Precision::full), 2, 64}, {0, 2, part::bit(Precision::int4), 2, 64}};
    a.stream_slots = 2;
    a.stream_slot_bytes = 64;
    Carver carve(block + 1024);
    r.reserve(carve, m, a);
  }
  alignas(64) std::byte block[8192];
  Residency& r = *new (block) Residency;

  void put(Variant v, Ticket t, bool demand) { r.admit(r.take_free(r.pool_of(v)), v, t, demand, Phase::decode); }
};

constexpr Variant high{{0, 1}, Precision::full}, low{{0, 1}, Precision::int4};
constexpr Variant any{{0, 1}, Precision::skip};

}  // namespace

TEST_CASE("what is wanted against what is resident (the table of docs/design.md)") {
  TwoPrecisions t;
  SUBCASE("none") {
    CHECK(t.r.find(high) == no_slot);
    CHECK(t.r.find(low) == no_slot);
    CHECK(t.r.find(any) == no_slot);
  }
  SUBCASE("low") {
    t.put(low, Ticket{2}, true);
    CHECK(t.r.find(high) == no_slot);
    CHECK(t.r.find(low) == 2);
    CHECK(t.r.find(any) == 2);
  }
  SUBCASE("high: low uses high") {
    t.put(high, Ticket{2}, true);
    CHECK(t.r.find(high) == 0);
    CHECK(t.r.find(low) == 0);
    CHECK(t.r.find(any) == 0);
  }
  SUBCASE("both: the better of the same state, the further of different states") {
    t.put(high, Ticket{3}, false);
    t.put(low, Ticket{2}, true);
    CHECK(t.r.find(low) == 2);  // certainly on its way, while the copy in high only waits
    t.r.advance({Ticket{2}, Ticket{3}, Ticket{3}});
    CHECK(t.r.find(low) == 0);
  }
}

TEST_CASE("states follow the link's progress") {
  TwoPrecisions t;
  t.put(high, Ticket{3}, false);
  CHECK(t.r.state(high) == State::queued);
  t.r.advance({Ticket::none, Ticket{2}, Ticket::none});
  CHECK(t.r.state(high) == State::queued);
  t.r.advance({Ticket::none, Ticket{3}, Ticket::none});
  CHECK(t.r.state(high) == State::in_flight);
  t.r.advance({Ticket::none, Ticket{3}, Ticket{3}});
  CHECK(t.r.state(high) == State::resident);
}

TEST_CASE("bars: lease and flight hold against demand, queue and mask only against prefetch") {
  TwoPrecisions t;
  t.put(high, Ticket{3}, false);
  auto demand = [&] { return t.r.barred(0, Residency::for_demand)[0]; };
  auto prefetch = [&] { return t.r.barred(0, Residency::for_prefetch)[0]; };
  CHECK_FALSE(demand());
  CHECK(prefetch());
  t.r.advance({Ticket::none, Ticket{3}, Ticket::none});
  CHECK(demand());
  t.r.advance({Ticket::none, Ticket{3}, Ticket{3}});
  CHECK_FALSE(demand());
  CHECK_FALSE(prefetch());
  t.r.mask(0, 1);
  CHECK_FALSE(demand());
  CHECK(prefetch());
  t.r.lease(0);
  CHECK(demand());
  t.r.unmask(0);  // the mask of another layer
  t.r.end_lease(0, Fence{5});
  CHECK(prefetch());
  t.r.unmask(1);
  CHECK_FALSE(prefetch());
  CHECK(t.r.slot(0).last_reader == Fence{5});
}

TEST_CASE("a mask dies with the eviction of its slot") {
  TwoPrecisions t;
  t.put(high, Ticket{2}, true);
  t.r.advance({Ticket{2}, Ticket::none, Ticket::none});
  t.r.mask(0, 1);
  t.r.evict(0);
  t.r.admit(0, {{0, 2}, Precision::full}, Ticket{4}, true, Phase::decode);
  t.r.advance({Ticket{4}, Ticket::none, Ticket::none});
  CHECK_FALSE(t.r.barred(0, Residency::for_prefetch)[0]);
  CHECK(t.r.find(high) == no_slot);
}

TEST_CASE("a prefetch that is evicted before it has begun is forgotten, and does not land in its slot's next copy") {
  TwoPrecisions t;
  t.put(high, Ticket{3}, false);
  t.r.evict(0);
  t.r.admit(0, {{0, 2}, Precision::full}, Ticket{4}, true, Phase::decode);
  CHECK(t.r.prefetches() == 0);
  t.r.advance({Ticket::none, Ticket{5}, Ticket{5}});  // all prefetches have landed, and no demand copy
  CHECK(t.r.state({{0, 2}, Precision::full}) == State::in_flight);
}

TEST_CASE("a slot is released to its own pool") {
  TwoPrecisions t;
  t.put(low, Ticket{2}, true);
  t.put({{0, 2}, Precision::int4}, Ticket{4}, true);
  t.r.advance({Ticket{4}, Ticket::none, Ticket::none});
  t.r.release(3);
  CHECK(t.r.has_free(1));
  CHECK(t.r.take_free(1) == 3);
  CHECK(t.r.take_free(0) == 0);
  CHECK(t.r.take_free(0) == 1);
}

TEST_CASE("a mask for a layer of the next step outlives the plans of later layers") {
  TwoPrecisions t;
  t.put(high, Ticket{2}, true);
  t.r.advance({Ticket{2}, Ticket::none, Ticket::none});
  t.r.mask(0, 0);
  t.r.unmask(1);  // the last layer of this step
  CHECK(t.r.barred(0, Residency::for_prefetch)[0]);
  t.r.unmask(0);
  CHECK_FALSE(t.r.barred(0, Residency::for_prefetch)[0]);
}

TEST_CASE("masks of evicted slots do not pile up") {
  TwoPrecisions t;
  t.put(high, Ticket{2}, true);
  std::uint64_t ticket = 4;
  for (std::uint16_t i = 0; i < 100; ++i, ticket += 2) {  // far more masks than slots
    const Variant what{{1, static_cast<std::uint16_t>(i % 4)}, Precision::full};
    t.r.admit(1, what, Ticket{ticket}, true, Phase::decode);
    t.r.advance({Ticket{ticket}, Ticket::none, Ticket::none});
    t.r.mask(1, 1);
    t.r.evict(1);
  }
  CHECK(t.r.held(0) == 1);
  CHECK(t.r.held(1) == 0);
  t.r.mask(0, 1);
  CHECK(t.r.barred(0, Residency::for_prefetch)[0]);
  t.r.unmask(1);
  CHECK_FALSE(t.r.barred(0, Residency::for_prefetch)[0]);
}

TEST_CASE("a released slot is free again, an expedited one keeps its expert") {
  TwoPrecisions t;
  t.put(high, Ticket{3}, false);
  t.put({{0, 2}, Precision::full}, Ticket{5}, false);
  CHECK_FALSE(t.r.has_free(0));
  t.r.expedite(0, Ticket{6}, Phase::decode);
  CHECK(t.r.state(high) == State::in_flight);
  int queued = 0;
  t.r.for_each_queued(0, [&](std::uint32_t slot) {
    ++queued;
    t.r.release(slot);
  });
  CHECK(queued == 1);
  CHECK(t.r.has_free(0));
  CHECK(t.r.take_free(0) == 1);
}

TEST_CASE("a queue keeps its order around the end of its ring and through removals") {
  alignas(64) std::byte block[512];
  auto& q = *new (block) CopyQueue<int>;
  Carver carve(block + 128);
  q.reserve(carve, 3);
  q.push(1);
  q.push(2);
  q.pop();
  q.push(3);
  q.push(4);  // wraps
  q.erase(1);
  REQUIRE(q.size() == 2);
  CHECK(q[0] == 2);
  CHECK(q[1] == 4);
}

TEST_CASE("a queue that goes round its ring writes nothing behind it") {
  alignas(64) std::byte block[512];
  auto& q = *new (block) CopyQueue<int>;
  auto& behind = *new (block + 64) Array<int>;
  Carver carve(block + 128);
  q.reserve(carve, 3);
  carve(behind, 1, 77);
  for (int i = 0; i < 10; ++i) {
    q.push(i);
    q.push(100 + i);
    CHECK(q[0] == i);
    CHECK(q[1] == 100 + i);
    q.pop();
    q.pop();
  }
  CHECK(behind[0] == 77);
}
