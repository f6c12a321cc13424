// Finishing times worked out by hand. An expert of 64 bytes at 64 bytes a microsecond: a copy takes 1000 ns.
#include "ferry/link/virtual_clock.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "support/random.hpp"
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

TEST_CASE("a demand copy goes ahead of a prefetch behind the chunk that is under way, and the rest follows") {
  VirtualClock c(model(1, 8, 1), {speed, 10, true, 0, 16});  // a chunk takes 250 ns
  c.submit(prefetch(3, 1));
  c.device(300);
  c.sync_device();
  CHECK(c.seen().prefetch_begun == Ticket{3});
  CHECK(c.seen().link_ns == 710);
  CHECK(c.seen().chunk_ns == 210);  // two chunks end at 510
  c.submit(demand(2, 0));
  c.submit(prefetch(5, 2));
  c.wait(Ticket{2});
  CHECK(c.device_free() == 1520);
  c.sync_device();
  CHECK(c.seen().demand_landed == Ticket{2});
  CHECK(c.seen().prefetch_begun >= Ticket{3});
  CHECK(c.seen().prefetch_begun < Ticket{5});
  CHECK(c.seen().prefetch_landed < Ticket{3});
  CHECK(c.bytes_copied() == 32 + 64);
  c.wait(Ticket{3});
  CHECK(c.device_free() == 2030);  // begins anew, with 32 bytes
  c.drain();
  CHECK(c.now() == 3040);
  CHECK(c.seen().prefetch_landed == Ticket{5});
  CHECK(c.busy_ns() == 3040);
  CHECK(c.bytes_copied() == 3 * 64);
  std::vector<std::uint64_t> order;
  for (const Span& s : c.spans()) {
    if (s.lane == Lane::link) order.push_back(static_cast<std::uint64_t>(s.ticket));
  }
  CHECK(order == std::vector<std::uint64_t>{3, 2, 3, 5});
}

TEST_CASE("nothing overtakes a prefetch that is waited for, is in its last chunk, or goes to the same slot") {
  const VirtualClock::Options cut{speed, 0, false, 0, 16};
  auto begun = [](VirtualClock& c, Nanoseconds at) {
    c.submit(prefetch(3, 1));
    c.device(at);
    c.sync_device();
  };
  VirtualClock waited(model(1, 8, 1), cut);
  begun(waited, 300);
  waited.submit(demand(2, 0));
  waited.wait(Ticket{3});
  CHECK(waited.device_free() == 1000);
  waited.wait(Ticket{2});
  CHECK(waited.device_free() == 2000);

  VirtualClock queued(model(1, 8, 1), cut);  // waited for before it begins
  queued.submit(demand(2, 0));
  queued.submit(prefetch(3, 1));
  queued.wait(Ticket{3});
  CHECK(queued.device_free() == 2000);
  queued.submit(demand(4, 2));
  queued.wait(Ticket{4});
  CHECK(queued.device_free() == 3000);

  VirtualClock last(model(1, 8, 1), cut);
  begun(last, 751);
  last.submit(demand(2, 0));
  last.wait(Ticket{2});
  CHECK(last.device_free() == 2000);

  VirtualClock same(model(1, 8, 1), {speed, 10, false, 0, 16});
  begun(same, 300);
  same.submit(demand(2, 1));
  same.wait(Ticket{2});
  CHECK(same.device_free() == 2020);  // without a second start

  VirtualClock again(model(1, 8, 1), cut);  // overtaken, and then waited for: before what came later
  begun(again, 300);
  again.submit(demand(2, 0));
  again.submit(demand(4, 2));
  again.device(300);
  again.sync_device();
  again.wait(Ticket{3});
  CHECK(again.device_free() == 500 + 1000 + 500);
  again.wait(Ticket{4});
  CHECK(again.device_free() == 3000);
}

TEST_CASE("a prefetch goes on while a demand copy may not begin") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false, 0, 16});
  c.submit(prefetch(3, 1));
  c.device(1);
  c.sync_device();
  c.device(599);
  c.fence(Fence{1});
  c.submit(demand(2, 0, Fence{1}));  // from 600 on: behind the third chunk
  c.wait(Ticket{2});
  CHECK(c.device_free() == 1750);
  c.fence(Fence{2});
  c.submit(demand(4, 0, Fence{2}));  // from 1750 on, when the prefetch would go on
  c.wait(Ticket{4});
  CHECK(c.device_free() == 2750);
  c.drain();
  CHECK(c.now() == 3000);
}

TEST_CASE("what is left of a dropped prefetch does not cross") {
  VirtualClock under_way(model(1, 8, 1), {speed, 0, false, 0, 16});
  under_way.submit(prefetch(3, 1));
  under_way.device(300);
  under_way.sync_device();
  under_way.drop(Ticket{3});
  CHECK(under_way.seen().prefetch_landed == Ticket{3});
  under_way.submit(demand(2, 1));  // its slot becomes free after the chunk
  under_way.wait(Ticket{2});
  CHECK(under_way.device_free() == 1500);
  CHECK(under_way.bytes_copied() == 32 + 64);

  VirtualClock overtaken(model(1, 8, 1), {speed, 0, false, 0, 16});
  overtaken.submit(prefetch(3, 1));
  overtaken.device(300);
  overtaken.sync_device();
  overtaken.submit(demand(2, 0));
  overtaken.wait(Ticket{2});
  overtaken.sync_device();
  overtaken.drop(Ticket{3});
  overtaken.drain();
  CHECK(overtaken.now() == 1500);
  CHECK(overtaken.seen().prefetch_landed == Ticket{3});
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

TEST_CASE("a demand copy that waits for its slot's reader is not begun where the prefetch behind it could be") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.device(700);
  c.fence(Fence{1});  // reached at 700
  c.submit(demand(2, 0, Fence{1}));
  c.submit(prefetch(3, 1));
  c.wait(Ticket{2});
  c.sync();
  CHECK(c.now() == 1700);
  c.wait(Ticket{3});
  c.sync();
  CHECK(c.now() == 2700);
}

TEST_CASE("the host computes beside device and link") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.host({1500, 1500}, full(0, 7));
  c.wait(Ticket{2});
  c.device(200);
  c.sync();
  CHECK(c.now() == 1500);
  CHECK(c.host_ns() == 1500);
}

TEST_CASE("the host is slower while a copy is on the link") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.host({1000, 2000}, full(0, 7));  // half done when the copy lands at 1000
  c.sync();
  CHECK(c.now() == 1500);
  CHECK(c.host_ns() == 1500);
}

TEST_CASE("a copy that begins while the host computes slows the rest") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.device(400);
  c.fence(Fence{1});
  c.submit(demand(2, 0, Fence{1}));  // 400 to 1400
  c.host({1000, 4000}, full(0, 7));  // at 400: 600 left; at 1400: 350
  CHECK(c.sync() == 1350);           // the device was free at 400
  CHECK(c.now() == 1750);
}

TEST_CASE("prefetches slow the host, too, also those that begin before it ends only since others slowed it") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.host({1000, 2000}, full(0, 7));
  c.submit(prefetch(3, 1));  // 0 to 1000: without the next one the host ends at 1500
  c.submit(prefetch(5, 2));  // 1000 to 2000
  c.sync();
  CHECK(c.now() == 2000);
  CHECK(c.busy_ns() == 2000);
}

TEST_CASE("copies before and behind the host's work leave it alone") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.wait(Ticket{2});
  c.sync();  // 1000
  c.host({1000, 2000}, full(0, 7));
  c.sync();
  CHECK(c.now() == 2000);
  c.submit(demand(4));
  c.wait(Ticket{4});
  c.sync();
  CHECK(c.now() == 3000);
  CHECK(c.host_ns() == 1000);
}

TEST_CASE("a copy is slower while the host computes") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false, speed / 2});
  c.host({1500, 1500}, full(0, 7));
  c.submit(demand(2));  // half as fast until 1500: 250 left
  c.wait(Ticket{2});
  CHECK(c.device_free() == 1750);
  CHECK(c.busy_ns() == 1750);
  CHECK(c.sync() == 0);
}

TEST_CASE("copy and host slow each other until one has done") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false, speed / 4});
  c.submit(demand(2));
  c.host({1000, 2000}, full(0, 7));
  c.wait(Ticket{2});  // at 2000 a half is left
  CHECK(c.device_free() == 2500);
  c.sync();
  CHECK(c.now() == 2500);
  CHECK(c.host_ns() == 2000);
}

TEST_CASE("host and copies end when a count of every nanosecond says") {
  Random random{2026};
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t fast = speed * random.between(1, 40), slow = fast / random.between(1, 5);
    VirtualClock c(model(1, 8, 1), {fast, 0, true, slow});
    struct Job {
      Nanoseconds from;
      double left, slow;  // of 1 a nanosecond; what of it is done in one while both are at it
    };
    std::vector<Job> jobs[2];  // of the link, of the host
    for (std::uint32_t i = 0, copies = random.below(6); i < copies; ++i) {
      c.device(random.below(900));
      c.fence(Fence{i + 1});
      const bool fenced = random.chance(50);
      jobs[0].push_back({fenced ? c.device_free() : 0, static_cast<double>(duration_ns(64, fast)),
                         static_cast<double>(duration_ns(64, fast)) / static_cast<double>(duration_ns(64, slow))});
      c.submit(demand(2 * i + 2, i, fenced ? Fence{i + 1} : Fence::none));
    }
    for (std::uint32_t i = 0, works = random.between(1, 4); i < works; ++i) {
      const Nanoseconds alone = 1 + random.below(2000), beside = alone + random.below(3000);
      jobs[1].push_back({0, static_cast<double>(alone), static_cast<double>(alone) / static_cast<double>(beside)});
      c.host({alone, beside}, full(0, 7));
    }
    std::vector<Nanoseconds> ends[2];
    for (Nanoseconds t = 0; ends[0].size() < jobs[0].size() || ends[1].size() < jobs[1].size(); ++t) {
      Job* at[2] = {};
      for (int i = 0; i < 2; ++i) {
        if (ends[i].size() < jobs[i].size() && jobs[i][ends[i].size()].from <= t) at[i] = &jobs[i][ends[i].size()];
      }
      for (int i = 0; i < 2; ++i) {
        if (at[i] == nullptr) continue;
        at[i]->left -= at[1 - i] != nullptr ? at[i]->slow : 1;
        if (at[i]->left < 1e-9) ends[i].push_back(t + 1);
      }
    }
    c.sync();
    c.drain();
    std::vector<Nanoseconds> found[2];
    for (const Span& s : c.spans()) {
      if (s.lane != Lane::device) found[s.lane == Lane::link ? 0 : 1].push_back(s.end_ns);
    }
    for (int i = 0; i < 2; ++i) {
      REQUIRE(found[i].size() == ends[i].size());
      for (std::size_t n = 0; n < ends[i].size(); ++n) {
        // The clock rounds down what was done when a pace changes; this count rounds a job's end up: a few ns an event.
        CHECK(std::abs(found[i][n] - ends[i][n]) <= 100);
      }
    }
  }
}

TEST_CASE("copies that overtake each other beside the host end when a count of every nanosecond says") {
  Random random{7};
  std::uint32_t overtaken = 0;
  for (int round = 0; round < 300; ++round) {
    const std::uint64_t fast = speed * random.between(1, 8), slow = fast / random.between(1, 4);
    const std::uint64_t chunk = random.between(5, 40);
    VirtualClock c(model(1, 8, 1), {fast, 0, true, slow, chunk});
    // Copies as (ticket, from), with how many of their 64 bytes have crossed.
    struct Job {
      std::uint64_t ticket;
      Nanoseconds from;
      double crossed;
    };
    std::vector<Job> demands, prefetches;
    Nanoseconds now = 0;
    for (std::uint32_t i = 0, copies = random.between(2, 8); i < copies; ++i) {
      const Nanoseconds rest = random.below(700);
      c.device(rest);
      c.sync_device();
      now += rest;
      const bool wanted = random.chance(50);
      const std::uint64_t ticket = 2 * i + (wanted ? 2 : 3);
      (wanted ? demands : prefetches).push_back({ticket, now, 0});
      c.submit(wanted ? demand(ticket, i) : prefetch(ticket, i));
    }
    const Nanoseconds alone = 1 + random.below(3000), beside = alone + random.below(3000);
    c.host({alone, beside}, full(0, 7));
    const Nanoseconds host_from = now;

    const double per_ns = 1e-9 * static_cast<double>(fast), slow_per_ns = 1e-9 * static_cast<double>(slow);
    double host_left = static_cast<double>(alone);
    std::vector<std::pair<std::uint64_t, Nanoseconds>> landed;
    Job* on_link = nullptr;
    std::size_t next_demand = 0, next_prefetch = 0;
    double stop = 64;  // the byte at which it is decided which copy goes on
    for (Nanoseconds t = 0; landed.size() < demands.size() + prefetches.size(); ++t) {
      const bool wants = next_demand < demands.size() && demands[next_demand].from <= t;
      if (on_link != nullptr && on_link->ticket % 2 == 1 && wants && stop >= 64) {
        stop =
            static_cast<double>(chunk) * std::max(1.0, std::ceil(on_link->crossed / static_cast<double>(chunk) - 1e-9));
        if (stop >= 64) stop = 64;
      }
      if (on_link != nullptr && stop < 64 && on_link->crossed >= stop - 1e-9) {
        on_link = nullptr;
        ++overtaken;
      }
      if (on_link == nullptr) {
        if (wants) {
          on_link = &demands[next_demand++];
        } else if (next_prefetch < prefetches.size() && prefetches[next_prefetch].from <= t) {
          on_link = &prefetches[next_prefetch];
        }
        stop = 64;
      }
      const bool hosts = host_from <= t && host_left > 1e-9;
      if (on_link != nullptr) on_link->crossed += hosts ? slow_per_ns : per_ns;
      if (hosts) host_left -= on_link != nullptr ? static_cast<double>(alone) / static_cast<double>(beside) : 1;
      if (on_link == nullptr || on_link->crossed < 64 - 1e-9) continue;
      landed.emplace_back(on_link->ticket, t + 1);
      if (on_link->ticket % 2 == 1) ++next_prefetch;
      on_link = nullptr;
      stop = 64;
    }
    c.sync();
    c.drain();
    std::map<std::uint64_t, Nanoseconds> found;  // when each copy finally ends
    for (const Span& s : c.spans()) {
      if (s.lane == Lane::link) found[static_cast<std::uint64_t>(s.ticket)] = s.end_ns;
    }
    CAPTURE(round);
    REQUIRE(found.size() == landed.size());
    for (const auto& copy : landed) {
      CAPTURE(copy.first);
      CHECK(std::abs(found[copy.first] - copy.second) <= 100);
    }
  }
  CHECK(overtaken > 50);
}

TEST_CASE("a layer's share of the host: activations cross, experts are computed, results cross back") {
  const ModelShape m = model(1, 8, 2, 4, 1000);
  Costs costs;
  costs.host = {1'000'000'000, 1'000'000'000, 5};  // 1000 bytes: 1000 ns
  costs.host_bytes_per_s_beside_copies = 250'000'000;
  costs.activations_latency_ns = 7;
  costs.activations_bytes_per_s = 2'000'000'000;
  costs.work = {{0, 0, 400, 100}};  // a row: 50 ns to cross, 400 to compute
  Task tasks[2];
  tasks[0].what = full(0, 1);
  tasks[0].rows = 1;
  tasks[1].what = full(0, 2);
  tasks[1].rows = 3;
  VirtualClock c(m, {1'000'000'000, 0, true});
  c.host({tasks, 2}, costs, 3);  // of four assignments, three rows cross
  CHECK(c.sync() == 157 + 1005 + 1205 + 157);
  CHECK(c.host_ns() == 1005 + 1205);
  REQUIRE(c.spans().size() == 4);
  CHECK(c.spans()[0].name == std::string("activations"));
  CHECK(c.spans()[1].what == full(0, 1));
  CHECK(c.spans()[1].begin_ns == 157);
  CHECK(c.spans()[3].name == std::string("results"));
  c.host({tasks, 1}, costs, 1);
  c.host({tasks, 0}, costs, 1);
  CHECK(c.sync() == 57 + 1005 + 57);
  // Beside copies from its begin to its end the first takes 5 + 4000.
  const Nanoseconds before = c.host_ns();
  for (std::uint64_t t = 2; t <= 20; t += 2) c.submit(demand(t));
  c.host({tasks, 1}, costs, 1);
  c.sync();
  CHECK(c.host_ns() - before >= 4005);
  CHECK(c.host_ns() - before <= 4005 + 5 * 4);  // five copies meet the work, and each rounds once
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

TEST_CASE("copies of another pipeline, numbered from anew, stop the link") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  c.submit(demand(2));
  c.submit(prefetch(3));
  c.wait(Ticket{2});
  c.drain();
  CHECK(c.seen().demand_landed == Ticket{2});
  c.submit(demand(2));
  CHECK(c.seen().demand_landed == Ticket::none);  // or the other's experts would seem to be there
  CHECK_THROWS_WITH_AS(c.wait(Ticket{2}), doctest::Contains("has served another pipeline"), LinkError);
  VirtualClock other(model(1, 8, 1), {speed, 0, false});
  other.submit(prefetch(5));
  other.submit(prefetch(3));
  CHECK_THROWS_WITH_AS(other.wait(Ticket{3}), doctest::Contains("one of its own for each"), LinkError);
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
  c.submit(demand(8));  // goes first, at the same instant
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

TEST_CASE("a copy that failed never counts as landed") {
  const ModelShape m = model(1, 8, 1);
  const std::vector<std::byte> bytes(m.bytes(0, Precision::full));
  SlotMemory memory(
      one_pool(m, 4 * bytes.size()),
      [&](Variant v) -> View<const std::byte> {
        if (v.id.expert == 3) throw std::runtime_error("disk");
        return {bytes.data(), static_cast<std::uint32_t>(bytes.size())};
      },
      true);
  for (const bool of_demand : {true, false}) {
    VirtualClock c(m, {speed, 0, false}, &memory);
    const std::uint64_t kind = of_demand ? 0 : 1;
    c.submit({Ticket{2 + kind}, full(0, 1), 0, Fence::none, of_demand});
    c.device(1'000'000);
    c.sync();
    const auto landed = [&] { return of_demand ? c.seen().demand_landed : c.seen().prefetch_landed; };
    CHECK(landed() >= Ticket{2 + kind});
    c.submit({Ticket{4 + kind}, full(0, 3), 1, Fence::none, of_demand});
    c.device(1'000'000);
    c.sync();
    CHECK(landed() < Ticket{4 + kind});
  }
}

TEST_CASE("bytes that cannot be had fail the wait") {
  const ModelShape m = model(1, 8, 1);
  SlotMemory memory(
      one_pool(m, 4 * 64), [](Variant) -> View<const std::byte> { throw std::runtime_error("disk"); }, true);
  VirtualClock c(m, {speed, 0, false}, &memory);
  c.submit(demand(2));
  CHECK_THROWS_WITH_AS(c.wait(Ticket{2}), "a copy failed: disk", LinkError);
}

TEST_CASE("work that no clock can weigh is refused") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  const std::string expected = " ns, expected 0 to less than 2^42 (73 minutes)";
  CHECK_THROWS_WITH_AS(c.device(-1), ("virtual clock, device: work of -1" + expected).c_str(), UsageError);
  CHECK_THROWS_WITH_AS(c.device(std::numeric_limits<Nanoseconds>::max()),
                       ("virtual clock, device: work of 9223372036854775807" + expected).c_str(), UsageError);
  CHECK_THROWS_WITH_AS(c.host({1, Nanoseconds{1} << 42U}, full(0, 0)),
                       ("virtual clock, host: work of 4398046511104" + expected).c_str(), UsageError);
  CHECK_THROWS_WITH_AS(c.host({-1, 1}, full(0, 0)), ("virtual clock, host: work of -1" + expected).c_str(), UsageError);
  CHECK(c.now() == 0);
  const std::string slow =
      "virtual clock: a copy of 64 bytes takes 2^42 ns (73 minutes) or more, expected a faster link";
  CHECK_THROWS_WITH_AS(VirtualClock(model(1, 8, 1), {speed, Nanoseconds{1} << 42U, false}), slow.c_str(), ConfigError);
  CHECK_THROWS_WITH_AS(
      VirtualClock(model(1, 8, 1, 1, std::uint64_t{1} << 45U), {1, std::numeric_limits<Nanoseconds>::max(), false}),
      "virtual clock: a copy of 35184372088832 bytes takes 2^42 ns (73 minutes) or more, expected a faster link",
      ConfigError);
  CHECK_THROWS_AS(VirtualClock(model(1, 8, 1), {speed, 0, false, 2'000'000'000'000'000}), ConfigError);
}

TEST_CASE("at the end of time everything still lands, and nothing hangs") {
  VirtualClock c(model(1, 8, 1), {speed, 0, false});
  constexpr Nanoseconds long_work = (Nanoseconds{1} << 42U) - 1;
  for (int i = 0; i < (1 << 21) + 2; ++i) c.device(long_work);
  c.sync_device();
  const Nanoseconds end = c.now();
  CHECK(end == std::numeric_limits<Nanoseconds>::max() - 1);
  c.submit(demand(2));
  c.submit(prefetch(3));
  c.host({1000, 2000}, full(0, 1));
  c.device(1000);
  c.wait(Ticket{2});
  c.wait(Ticket{3});
  CHECK(c.sync() == 0);
  c.drain();
  CHECK(c.seen().demand_landed == Ticket{2});
  CHECK(c.now() == end);
  CHECK(c.device_ns() == std::numeric_limits<Nanoseconds>::max());
}
