#include "ferry/link/host_thread.hpp"

#include <doctest/doctest.h>

#include <future>

#include "support/shapes.hpp"
#include "support/watchdog.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

struct ThreadFixture {
  ModelShape m = model(1, 8, 1, 1, 4096);
  std::vector<std::vector<std::byte>> experts = [] {
    std::vector<std::vector<std::byte>> e;
    for (int i = 0; i < 8; ++i) e.emplace_back(4096, static_cast<std::byte>(i));
    return e;
  }();
  SlotMemory memory{one_pool(m, 6 * 4096),
                    [this](Variant v) {
                      return View<const std::byte>{experts[v.id.expert].data(), 4096};
                    },
                    true};
  Watchdog watchdog;
};

Copy copy_of(std::uint64_t ticket, std::uint16_t expert, std::uint32_t slot, Fence after = Fence::none) {
  return {Ticket{ticket}, full(0, expert), slot, after, !is_prefetch(Ticket{ticket})};
}

}  // namespace

TEST_CASE("where slots borrow, what landed is there without a copy, and copies cannot be slowed down") {
  const ThreadFixture f;
  SlotMemory memory = SlotMemory::borrowing(one_pool(f.m, 6 * 4096), [&](Variant v) {
    return View<const std::byte>{f.experts[v.id.expert].data(), 4096};
  });
  HostThread link(memory, {.latency_ns = 1000});
  link.submit(copy_of(2, 5, 3));
  link.submit(copy_of(4, 6, 3));
  link.wait(Ticket{2});
  link.wait(Ticket{4});
  CHECK(memory.slot(3) == f.experts[6].data());
  CHECK(link.bytes_copied() == 2 * 4096);
  CHECK_THROWS_AS(HostThread(memory, {.bytes_per_s = 1000}), ConfigError);
  CHECK_THROWS_AS(HostThread(memory, {.latency_ns = -1}), ConfigError);
  CHECK_THROWS_AS(HostThread(memory, {.latency_ns = std::numeric_limits<Nanoseconds>::max()}), ConfigError);
  CHECK_THROWS_AS(HostThread(memory, {.linger_ns = std::numeric_limits<Nanoseconds>::max()}), ConfigError);
}

TEST_CASE("what landed is there, whole") {
  ThreadFixture f;
  HostThread link(f.memory, {.chunk_bytes = 1000});
  link.submit(copy_of(2, 5, 3));
  link.wait(Ticket{2});
  CHECK(f.memory.slot(3)[0] == std::byte{5});
  CHECK(f.memory.slot(3)[4095] == std::byte{5});
  CHECK(link.seen().demand_landed == Ticket{2});
  CHECK(link.bytes_copied() == 4096);
}

TEST_CASE("the throttle holds: a copy takes at least its bytes over the bandwidth") {
  ThreadFixture f;
  HostThread link(f.memory, {.bytes_per_s = 1'000'000, .latency_ns = 1'000'000});  // 4.096 ms + 1 ms
  const Nanoseconds begin = HostThread::now();
  link.submit(copy_of(2, 1, 0));
  link.wait(Ticket{2});
  CHECK(HostThread::now() - begin >= 5'096'000);
  CHECK(link.busy_ns() >= 5'096'000);
}

TEST_CASE("once a copy has taken its time, what is left of the next is known") {
  ThreadFixture f;
  HostThread link(f.memory, {.bytes_per_s = 20'000});  // 205 ms
  CHECK(link.seen().link_ns == 0);
  link.submit(copy_of(1, 5, 3));
  CHECK(link.seen().link_ns == 0);  // no other has landed
  link.wait(Ticket{1});
  CHECK(link.seen().link_ns == 0);
  link.submit(copy_of(2, 6, 4));
  Nanoseconds before = 0, most = 0;
  while (link.seen().demand_landed != Ticket{2}) {
    const Nanoseconds left = link.seen().link_ns;
    if (left > 0 && before > 0) CHECK(left <= before);
    before = left;
    most = std::max(most, left);
    std::this_thread::yield();
  }
  CHECK(most > 1'000'000);
  CHECK(most < 4'000'000'000);
  CHECK(link.seen().link_ns == 0);
}

TEST_CASE("demand overtakes queued prefetches, and a queued prefetch can be dropped") {
  ThreadFixture f;
  HostThread link(f.memory, {.bytes_per_s = 400'000, .log = true});  // ~10 ms a copy
  link.submit(copy_of(3, 1, 0));
  while (link.seen().prefetch_begun < Ticket{3}) std::this_thread::yield();
  link.submit(copy_of(5, 2, 1));
  link.submit(copy_of(7, 3, 2));
  link.submit(copy_of(8, 4, 3));
  link.drop(Ticket{5});
  link.wait(Ticket{8});
  CHECK(link.seen().prefetch_landed >= Ticket{3});
  link.wait(Ticket{7});
  link.drain();
  std::vector<std::uint64_t> order;
  for (const Span& s : link.spans()) order.push_back(static_cast<std::uint64_t>(s.ticket));
  CHECK(order == std::vector<std::uint64_t>{3, 8, 7});
  CHECK(f.memory.slot(1)[0] == std::byte{0xff});  // dropped: freed and poisoned
}

TEST_CASE("a demand copy overtakes a prefetch that has begun, between two of its chunks, and the rest follows") {
  ThreadFixture f;
  // ~50 ms a copy, in 16 chunks
  HostThread link(f.memory, {.bytes_per_s = 80'000, .log = true, .prefetch_chunk_bytes = 256});
  link.submit(copy_of(3, 1, 0));
  while (link.seen().prefetch_begun < Ticket{3}) std::this_thread::yield();
  CHECK(link.seen().chunk_ns > 0);
  link.submit(copy_of(5, 2, 1));
  link.submit(copy_of(8, 4, 3));
  link.wait(Ticket{8});
  CHECK(f.memory.slot(3)[4095] == std::byte{4});
  CHECK(link.seen().prefetch_landed < Ticket{3});
  link.drain();
  CHECK(f.memory.slot(0)[0] == std::byte{1});
  CHECK(f.memory.slot(0)[4095] == std::byte{1});
  CHECK(link.seen().prefetch_landed == Ticket{5});
  CHECK(link.bytes_copied() == 3 * 4096);
  std::vector<std::uint64_t> order;
  for (const Span& s : link.spans()) order.push_back(static_cast<std::uint64_t>(s.ticket));
  CHECK(order == std::vector<std::uint64_t>{3, 8, 3, 5});
}

TEST_CASE("a prefetch that is waited for is overtaken no more") {
  ThreadFixture f;
  HostThread link(f.memory, {.bytes_per_s = 200'000, .log = true, .prefetch_chunk_bytes = 256});
  link.submit(copy_of(3, 1, 0));
  while (link.seen().prefetch_begun < Ticket{3}) std::this_thread::yield();
  for (std::uint64_t t = 4; t <= 12; t += 2) link.submit(copy_of(t, 2, static_cast<std::uint32_t>(t / 4 + 1)));
  link.wait(Ticket{3});
  CHECK(link.seen().demand_landed <= Ticket{4});  // that one may have begun before
  CHECK(f.memory.slot(0)[4095] == std::byte{1});
  link.drain();
}

TEST_CASE("what is left of a dropped prefetch does not cross, and its slot is free for the next copy") {
  ThreadFixture f;
  HostThread link(f.memory, {.bytes_per_s = 80'000, .prefetch_chunk_bytes = 256});
  SUBCASE("while it is on the link") {
    link.submit(copy_of(3, 1, 0));
    while (link.seen().prefetch_begun < Ticket{3}) std::this_thread::yield();
    link.drop(Ticket{3});
    CHECK(link.seen().prefetch_landed == Ticket{3});
    link.submit(copy_of(4, 2, 0));
    link.wait(Ticket{4});
  }
  SUBCASE("when it was overtaken") {
    link.submit(copy_of(3, 1, 0));
    while (link.seen().prefetch_begun < Ticket{3}) std::this_thread::yield();
    link.submit(copy_of(4, 5, 1));
    link.wait(Ticket{4});
    link.drop(Ticket{3});
    CHECK(link.seen().prefetch_landed == Ticket{3});
    link.submit(copy_of(6, 2, 0));
    link.wait(Ticket{6});
  }
  link.drain();
  CHECK(f.memory.slot(0)[0] == std::byte{2});
  CHECK(f.memory.slot(0)[4095] == std::byte{2});
  CHECK(link.bytes_copied() < 3 * 4096);
}

TEST_CASE("not one byte before the slot's last reader, and nothing overtakes that copy") {
  ThreadFixture f;
  HostThread link(f.memory, {});
  link.submit(copy_of(2, 1, 0));
  link.wait(Ticket{2});
  link.submit(copy_of(4, 6, 0, Fence{9}));
  link.submit(copy_of(5, 7, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(link.seen().demand_landed == Ticket{2});
  CHECK(link.seen().prefetch_begun < Ticket{5});
  link.fence(Fence{9});
  link.wait(Ticket{4});
  CHECK(f.memory.slot(0)[0] == std::byte{6});
}

TEST_CASE("the fence before the one that a copy waits for does not start it") {
  ThreadFixture f;
  HostThread link(f.memory, {});
  link.fence(Fence{8});
  link.submit(copy_of(2, 6, 0, Fence{9}));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(link.seen().demand_landed == Ticket::none);
  link.fence(Fence{9});
  link.wait(Ticket{2});
  CHECK(link.seen().demand_landed == Ticket{2});
}

TEST_CASE("a prefetch that has begun has not landed") {
  const ThreadFixture f;
  std::promise<void> go_on;
  std::shared_future<void> may_go_on = go_on.get_future().share();
  SlotMemory memory(
      one_pool(f.m, 6 * 4096),
      [&f, may_go_on](Variant v) {
        may_go_on.wait();
        return View<const std::byte>{f.experts[v.id.expert].data(), 4096};
      },
      true);
  HostThread link(memory, {});
  link.submit(copy_of(3, 7, 1));
  Seen seen = link.seen();
  for (; seen.prefetch_begun < Ticket{3}; seen = link.seen()) std::this_thread::yield();
  CHECK(seen.prefetch_landed < Ticket{3});
  go_on.set_value();
  link.wait(Ticket{3});
  CHECK(link.seen().prefetch_landed == Ticket{3});
}

TEST_CASE("waiting for a copy that was never submitted is an error, not a hang") {
  ThreadFixture f;
  HostThread link(f.memory, {});
  link.submit(copy_of(5, 1, 0));
  CHECK_THROWS_AS(link.wait(Ticket{2}), LinkError);
  CHECK_THROWS_AS(link.wait(Ticket{7}), LinkError);
}

TEST_CASE("copies of another pipeline, numbered from anew, stop the link") {
  for (const bool prefetch : {false, true}) {
    ThreadFixture f;
    HostThread link(f.memory, {});
    const std::uint64_t odd = prefetch ? 1 : 0;
    link.submit(copy_of(4 + odd, 1, 0));
    link.wait(Ticket{4 + odd});
    link.submit(copy_of(2 + odd, 2, 1));
    CHECK(link.seen().demand_landed == Ticket::none);  // or the other's experts would seem to be there
    CHECK(link.seen().prefetch_landed == Ticket::none);
    CHECK_THROWS_WITH_AS(link.wait(Ticket{2 + odd}), doctest::Contains("has served another pipeline"), LinkError);
  }
}

TEST_CASE("ends at once with copies still queued") {
  ThreadFixture f;
  const Nanoseconds begin = HostThread::now();
  {
    HostThread link(f.memory, {.bytes_per_s = 40'000});  // 0.1 s a copy
    for (std::uint64_t t = 2; t < 200; t += 2) link.submit(copy_of(t, 1, static_cast<std::uint32_t>(t % 4)));
  }
  CHECK(HostThread::now() - begin < 2'000'000'000);
}

TEST_CASE("a prefetch that failed never counts as landed") {
  ThreadFixture f;
  SlotMemory memory(
      one_pool(f.m, 6 * 4096),
      [&](Variant v) -> View<const std::byte> {
        if (v.id.expert == 3) throw std::runtime_error("disk");
        return {f.experts[v.id.expert].data(), 4096};
      },
      true);
  HostThread link(memory, {});
  link.submit(copy_of(3, 1, 0));
  link.wait(Ticket{3});
  link.submit(copy_of(5, 3, 1));
  link.submit(copy_of(7, 4, 2));
  CHECK_THROWS_WITH_AS(link.drain(), "a copy failed: disk", LinkError);
  CHECK(link.seen().prefetch_landed >= Ticket{3});
  CHECK(link.seen().prefetch_landed < Ticket{5});
}

TEST_CASE("bytes that cannot be had, or do not fit, fail the wait instead of hanging or ending the process") {
  const ModelShape m = model(1, 8, 1, 1, 64);
  SUBCASE("cannot be had") {
    SlotMemory memory(
        one_pool(m, 4 * 64), [](Variant) -> View<const std::byte> { throw std::runtime_error("disk"); }, true);
    HostThread link(memory, {});
    link.submit(copy_of(2, 1, 0));
    link.submit(copy_of(4, 2, 1));
    CHECK_THROWS_WITH_AS(link.wait(Ticket{4}), "a copy failed: disk", LinkError);
    CHECK_THROWS_AS(link.drain(), LinkError);
  }
  SUBCASE("do not fit") {
    const std::vector<std::byte> large(65);
    SlotMemory memory(
        one_pool(m, 4 * 64),
        [&](Variant) {
          return View<const std::byte>{large.data(), 65};
        },
        true);
    HostThread link(memory, {});
    link.submit(copy_of(2, 1, 0));
    CHECK_THROWS_AS(link.wait(Ticket{2}), LinkError);
  }
  SUBCASE("cannot be had, and no exception of the standard says so") {
    SlotMemory memory(
        one_pool(m, 4 * 64), [](Variant) -> View<const std::byte> { throw "gone"; }, true);
    HostThread link(memory, {});
    link.submit(copy_of(2, 1, 0));
    CHECK_THROWS_WITH_AS(link.wait(Ticket{2}), "a copy failed: an error that is no std::exception", LinkError);
  }
}
