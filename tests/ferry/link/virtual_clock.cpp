// Finishing times worked out by hand. An expert of 64 bytes at 64 bytes a microsecond: a copy takes 1000 ns.
#include "ferry/link/virtual_clock.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

constexpr std::uint64_t speed = 64'000'000;

Copy demand(std::uint64_t ticket, std::uint32_t slot = 0, Fence after = Fence::none) {
  return {Ticket{ticket}, full(0, static_cast<std::uint16_t>(ticket % 8)), slot, after, true};
}
Copy prefetch(std::uint64_t ticket, std::uint32_t slot = 1, Fence after = Fence::none) {
  return {Ticket{ticket}, full(0, static_cast<std::uint16_t>(ticket % 8)), slot, after, false};
}

}  // namespace

TEST_CASE("one copy, one computation: they add up when the computation needs the copy") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.wait(Ticket{2});
  c.device(300);
  c.sync();
  CHECK(c.now() == 1300);
  CHECK(c.stall_ns() == 1000);
  CHECK(c.busy_ns() == 1000);
}

TEST_CASE("overlap: computation that needs no copy hides part of it") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.device(700);
  c.wait(Ticket{2});
  c.device(300);
  c.sync();
  CHECK(c.now() == 1300);
  CHECK(c.stall_ns() == 300);
}

TEST_CASE("latency adds to each copy, and a copy's time is rounded up") {
  VirtualClock c(model(1, 8, 1, 1, 65), {speed, 10, false});
  CHECK(c.copy_ns(full(0, 0)) == 10 + 1016);  // 65 / 64 us = 1015.625 ns
}

TEST_CASE("two demand copies go one after the other") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2, 0));
  c.submit(demand(4, 1));
  c.wait(Ticket{2});
  c.device(100);  // 1000 to 1100
  c.wait(Ticket{4});
  c.device(100);  // 2000 to 2100
  c.sync();
  CHECK(c.now() == 2100);
}

TEST_CASE("no preemption: a demand copy waits for the prefetch that has begun") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(prefetch(3));
  c.device(400);
  c.sync();  // at 400 the prefetch is under way until 1000
  c.submit(demand(4));
  c.wait(Ticket{4});
  c.sync();
  CHECK(c.now() == 2000);
}

TEST_CASE("demand goes before prefetches that have not begun") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(prefetch(3, 1));  // 0 to 1000
  c.submit(prefetch(5, 2));
  c.device(400);
  c.sync();
  c.submit(demand(6));  // 1000 to 2000, ahead of prefetch 5, which ends at 3000
  c.wait(Ticket{6});
  c.sync();
  CHECK(c.now() == 2000);
  CHECK(c.seen().prefetch_landed >= Ticket{3});
  CHECK(c.seen().prefetch_landed < Ticket{5});
  c.device(1000);
  c.sync();
  CHECK(c.now() == 3000);
  CHECK(c.seen().prefetch_landed == Ticket{5});
}

TEST_CASE("a demand copy of the same instant goes before a prefetch that could begin") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(prefetch(3));
  c.submit(demand(4));
  c.wait(Ticket{4});
  c.sync();
  CHECK(c.now() == 1000);
}

TEST_CASE("a late hit waits only for the rest of the copy") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(prefetch(3));
  c.device(900);
  c.sync();
  CHECK(c.seen().prefetch_begun == Ticket{3});
  CHECK(c.seen().prefetch_landed < Ticket{3});
  c.wait(Ticket{3});
  c.device(50);
  c.sync();
  CHECK(c.now() == 1050);
  CHECK(c.stall_ns() == 100);
}

TEST_CASE("a dropped prefetch takes no time, and one that has begun is not taken back") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(prefetch(3, 1));
  c.submit(prefetch(5, 2));
  c.device(100);
  c.sync();
  c.drop(Ticket{3});  // too late
  c.drop(Ticket{5});
  CHECK(c.seen().prefetch_begun >= Ticket{5});
  c.submit(demand(6));
  c.wait(Ticket{6});
  c.sync();
  CHECK(c.now() == 2000);
  CHECK(c.busy_ns() == 2000);
}

TEST_CASE("a copy waits for the last reader of its slot, and the link with it") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.device(700);
  c.fence(Fence{1});  // reached at 700
  c.submit(demand(2, 0, Fence{1}));
  c.submit(demand(4, 1));
  c.wait(Ticket{2});
  c.sync();
  CHECK(c.now() == 1700);
  c.wait(Ticket{4});
  c.sync();
  CHECK(c.now() == 2700);
}

TEST_CASE("the host computes beside device and link") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.host(1500);
  c.wait(Ticket{2});
  c.device(200);
  c.sync();
  CHECK(c.now() == 1500);
  CHECK(c.host_ns() == 1500);
}

TEST_CASE("bytes move in the link's order, also after a drop that came too late") {
  const ModelShape m = model(1, 8, 1);
  std::vector<std::vector<std::byte>> experts;
  for (int e = 0; e < 8; ++e) experts.emplace_back(64, static_cast<std::byte>(e));
  SlotMemory memory(
      one_pool(m, 4 * 64),
      [&](Variant v) {
        return View<const std::byte>{experts[v.id.expert].data(), 64};
      },
      true);
  VirtualClock c(m, {speed, 0, false}, &memory);
  CHECK(memory.slot(1)[0] == std::byte{0xff});
  c.submit(prefetch(3, 1));
  c.device(100);
  c.sync();
  c.drop(Ticket{3});       // it is under way
  c.submit(demand(4, 1));  // the same slot: lands after it
  c.wait(Ticket{4});
  CHECK(memory.slot(1)[0] == std::byte{4});
  CHECK(memory.slot(1)[63] == std::byte{4});
}

TEST_CASE("waiting for a copy that was never submitted is an error, not a hang") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.submit(prefetch(5));
  CHECK_THROWS_AS(c.wait(Ticket{4}), LinkError);
  CHECK_THROWS_AS(c.wait(Ticket{7}), LinkError);
  CHECK_THROWS_AS(VirtualClock(model(1, 8, 1), {0, 0, false}), ConfigError);
}

TEST_CASE("waiting for a copy that has landed, and was seen, starts no prefetch") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.device(1000);
  c.sync();
  CHECK(c.seen().demand_landed == Ticket{2});
  c.submit(prefetch(5, 1));
  c.submit(prefetch(7, 2));
  c.wait(Ticket{2});
  CHECK(c.seen().prefetch_begun < Ticket{5});
  c.submit(demand(8));  // at the same instant: first
  c.wait(Ticket{8});
  c.sync();
  CHECK(c.now() == 2000);
}

TEST_CASE("a queued prefetch keeps its fence, however late it begins") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.device(5000);
  c.fence(Fence{1});  // at 5000
  c.submit(prefetch(3, 1, Fence{1}));
  c.sync();  // 5000
  c.fence(Fence{2});
  c.device(1);
  c.sync();
  c.wait(Ticket{3});
  c.sync();
  CHECK(c.now() == 6000);
}

TEST_CASE("bytes that cannot be had fail the wait") {
  const ModelShape m = model(1, 8, 1);
  SlotMemory memory(
      one_pool(m, 4 * 64), [](Variant) -> View<const std::byte> { throw std::runtime_error("disk"); }, true);
  VirtualClock c(m, {speed, 0, false}, &memory);
  c.submit(demand(2));
  CHECK_THROWS_WITH_AS(c.wait(Ticket{2}), "a copy failed: disk", LinkError);
}
