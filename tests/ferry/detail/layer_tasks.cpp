#include "ferry/detail/layer_tasks.hpp"

#include <doctest/doctest.h>

#include <new>
#include <vector>

#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// A layer of 8 experts: a pool of as many slots as asked for, and 2 stream slots.
struct LayerFixture {
  explicit LayerFixture(std::uint32_t cached) {
    const ModelShape m = model(1, 8, 1, 8);
    Carver carve(block + 4096);
    slots.reserve(carve, m, {{{0, 1, part::bit(Precision::full), cached, 64}}, 2, 64}, Lru{}, 1, -1.0F);
    tasks.reserve(carve, 8, 2);
    const std::uint32_t sequence = 0;
    slots.begin_step({Phase::decode, {&sequence, 1}}, false);
  }

  alignas(64) std::byte block[16384];
  detail::CachedSlots<stacks::LruCache>& slots = *new (block) detail::CachedSlots<stacks::LruCache>;
  detail::LayerTasks<stacks::LruCache>& tasks = *new (block + 2048) detail::LayerTasks<stacks::LruCache>;
};

std::vector<Request> requests(std::uint16_t count) {
  std::vector<Request> all(count);
  for (std::uint16_t e = 0; e < count; ++e) all[e].want = full(0, e);
  return all;
}

}  // namespace

TEST_CASE("misses take the pool's slots, then the stream slots in turn, each behind the task before it") {
  LayerFixture f(1);
  std::vector<Request> misses = requests(5);
  f.tasks.load(misses, f.slots);
  const View<const Task> a = f.tasks.arriving();
  REQUIRE(a.size == 5);
  const std::uint32_t slots[] = {0, 1, 2, 1, 2}, freed_by[] = {no_task, no_task, no_task, 1, 2};
  for (std::uint32_t i = 0; i < 5; ++i) {
    CHECK(a[i].slot == slots[i]);
    CHECK(a[i].freed_by == freed_by[i]);
    CHECK(a[i].transient == (i > 0));
    CHECK(misses[i].slot == (i == 0 ? 0 : no_slot));
  }
  CHECK(f.slots.commands().submit.size == 3);
  CHECK(f.tasks.waits());

  f.slots.begin_call();
  f.tasks.done(a.part(2, 1), Fence{1}, f.slots);  // not its turn: nothing starts
  CHECK(f.slots.commands().submit.size == 0);
  f.tasks.done(a.part(1, 1), Fence{2}, f.slots);
  REQUIRE(f.slots.commands().submit.size == 1);
  CHECK(f.slots.commands().submit[0].ticket == a[3].ready);
  CHECK(f.slots.commands().submit[0].after == Fence{2});
  CHECK(f.tasks.waits());

  f.slots.begin_call();
  f.tasks.end(Fence{3}, f.slots);
  CHECK(f.tasks.empty());
  for (std::uint32_t s = 0; s < 3; ++s) CHECK_FALSE(f.slots.residency().is_leased(s));
}

TEST_CASE("what is in flight runs in the order in which it lands, before what is loaded") {
  LayerFixture f(4);
  for (const std::uint16_t e : std::initializer_list<std::uint16_t>{2, 0, 1}) {
    std::uint16_t closed = Residency::no_pool;
    f.slots.admit(f.slots.make_room(full(0, e), Residency::for_demand, closed), full(0, e), true);
  }
  std::vector<Request> all = requests(4);
  for (Request& r : all) f.slots.find_best(r);
  f.tasks.add_in_flight(all, f.slots);
  f.tasks.load({&all[3], 1}, f.slots);
  const std::uint16_t order[] = {2, 0, 1, 3};
  REQUIRE(f.tasks.arriving().size == 4);
  for (std::uint32_t i = 0; i < 4; ++i) CHECK(f.tasks.arriving()[i].what.id.expert == order[i]);
  CHECK_FALSE(f.tasks.waits());
  CHECK(f.slots.accounts().counters().of(Phase::decode).late_hits == 3);
}

TEST_CASE("the task that frees a slot is counted among those that arrive, behind the resident ones") {
  LayerFixture f(1);
  std::vector<Request> all = requests(5);
  std::uint16_t closed = Residency::no_pool;
  f.slots.admit(f.slots.make_room(full(0, 0), Residency::for_demand, closed), full(0, 0), true);
  f.slots.begin_call({Ticket{100}, Ticket{101}, Ticket{101}});
  f.slots.find_best(all[0]);
  f.slots.lease(0);
  f.tasks.add_resident({all.data(), 1}, f.slots);
  f.tasks.load({all.data() + 1, 4}, f.slots);
  CHECK(f.tasks.resident().size == 1);
  const View<const Task> a = f.tasks.arriving();
  REQUIRE(a.size == 4);
  const std::uint32_t slots[] = {1, 2, 1, 2}, freed_by[] = {no_task, no_task, 0, 1};
  for (std::uint32_t i = 0; i < 4; ++i) {
    CHECK(a[i].slot == slots[i]);
    CHECK(a[i].freed_by == freed_by[i]);
  }
}
