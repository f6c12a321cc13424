// The core's decisions in small cases that are followed by hand.
#include "ferry/core.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "ferry/link/command_buffer.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

static_assert(std::is_trivially_copyable_v<Core<stacks::OnDemand>>);
static_assert(std::is_trivially_copyable_v<Core<stacks::LruCache>>);
static_assert(std::is_trivially_copyable_v<Core<stacks::CrossLayerLru>>);

namespace {

constexpr Seen nothing_seen{};
constexpr Seen all_landed{Ticket{1'000'000}, Ticket{1'000'001}, Ticket{1'000'001}};

template <class StackT>
struct CoreFixture {
  CoreFixture(ModelShape m, Allotment a) {
    config.model = m;
    config.allotment = a;
  }
  void build() { core = std::make_unique<OwnedCore<StackT>>(config); }
  Core<StackT>& operator*() { return **core; }
  Core<StackT>* operator->() { return &**core; }

  CoreConfig<StackT> config;
  std::unique_ptr<OwnedCore<StackT>> core;
};

std::vector<std::uint16_t> experts(View<const Task> tasks) {
  std::vector<std::uint16_t> e;
  for (const Task& t : tasks) e.push_back(t.what.id.expert);
  return e;
}

using Ids = std::vector<std::uint16_t>;

}  // namespace

TEST_CASE("LRU: a miss, then a hit, then an eviction that waits for the last reader") {
  // one layer of 4 experts, top-1, two cache slots
  CoreFixture<stacks::LruCache> f(model(1, 4, 1), one_pool(model(1, 4, 1), 4 * 64 - 1));
  f.config.allotment = {{{0, 1, part::bit(Precision::full), 2, 64}}, 2, 64};
  f.build();
  auto step = [&](std::uint16_t expert, const Seen& seen) {
    f->begin_step(StepOf(Phase::decode, 1));
    const auto s = favour(4, {expert});
    return f->plan(scores(0, s), seen);
  };
  Plan p = step(3, nothing_seen);
  REQUIRE(p.arriving.size == 1);
  CHECK(p.resident.size == 0);
  REQUIRE(f->commands().submit.size == 1);
  Copy c = f->commands().submit[0];
  CHECK(c.what == full(0, 3));
  CHECK(c.slot == 0);
  CHECK(c.demand);
  CHECK(c.after == Fence::none);
  CHECK(p.arriving[0].ready == c.ticket);
  f->finish(0, {}, all_landed);  // fence 1

  p = step(3, all_landed);
  CHECK(experts(p.resident) == Ids{3});
  CHECK(f->commands().submit.size == 0);
  f->finish(0, {}, all_landed);  // fence 2

  step(1, all_landed);
  CHECK(f->commands().submit[0].slot == 1);
  f->finish(0, {}, all_landed);
  step(0, all_landed);  // evicts 3, which was used before 1
  CHECK(f->commands().submit[0].slot == 0);
  CHECK(f->commands().submit[0].after == Fence{2});
  f->finish(0, {}, all_landed);

  const Outcomes& o = f->counters().of(Phase::decode);
  CHECK(o.requests == 4);
  CHECK(o.hits == 1);
  CHECK(o.misses == 3);
  CHECK(o.bytes == 3 * 64);
}

TEST_CASE("hits are touched before misses are admitted, and no expert of a step evicts another") {
  const ModelShape m = model(1, 4, 2);
  CoreFixture<stacks::LruCache> f(m, {{{0, 1, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.build();
  auto step = [&](const Ids& best) {
    f->begin_step(StepOf(Phase::decode, 1));
    const auto s = favour(4, best);
    return f->plan(scores(0, s), all_landed);
  };
  step({0, 1});
  f->finish(0, {}, all_landed);
  const Plan p = step({0, 2});  // 0 is the least recent, but needed: 1 goes
  CHECK(experts(p.resident) == Ids{0});
  CHECK(experts(p.arriving) == Ids{2});
  CHECK(f->commands().submit[0].slot == 1);
}

TEST_CASE("a layer that needs more than fits streams in waves, each copy behind the task before it in its slot") {
  const ModelShape m = model(1, 6, 2, 3);
  CoreFixture<stacks::OnDemand> f(m, stream_only(m, 2 * 64));
  f.build();
  f->begin_step(StepOf(Phase::prefill, 3));
  std::vector<float> s;
  for (const Ids& best : {Ids{0, 1}, Ids{2, 3}, Ids{4, 0}}) {
    const auto row = favour(6, best);
    s.insert(s.end(), row.begin(), row.end());
  }
  const Plan p = f->plan(scores(0, s), nothing_seen);
  REQUIRE(experts(p.arriving) == Ids{0, 1, 2, 3, 4});
  CHECK(f->commands().submit.size == 2);  // only what has a slot now
  CHECK(p.arriving[0].freed_by == no_task);
  CHECK(p.arriving[1].freed_by == no_task);
  CHECK(p.arriving[2].freed_by == 0);
  CHECK(p.arriving[3].freed_by == 1);
  CHECK(p.arriving[4].freed_by == 2);
  CHECK(p.arriving[0].rows == 2);  // rows 0 and 2, one task: a wave never splits an expert's rows
  CHECK(p.assignments[p.arriving[0].first] == 0);
  CHECK(p.assignments[p.arriving[0].first + 1] == 5);
  for (std::uint32_t i = 0; i < 5; ++i) {
    CHECK(p.arriving[i].transient);
    const Fence fence = f->next_fence();
    f->done(p.arriving.part(i, 1));
    const Commands c = f->commands();
    REQUIRE(c.submit.size == (i < 3 ? 1 : 0));
    if (i < 3) {
      CHECK(c.submit[0].ticket == p.arriving[i + 2].ready);
      CHECK(c.submit[0].slot == p.arriving[i].slot);
      CHECK(c.submit[0].after == fence);
    }
  }
  f->finish(0, {}, all_landed);
  // nothing is kept
  f->begin_step(StepOf(Phase::decode, 1));
  const auto again = favour(6, {0, 1});
  CHECK(f->plan(scores(0, again), all_landed).resident.size == 0);
}

TEST_CASE("a prefetch: hit when landed, late hit when in flight, expedited when queued, dropped when stale") {
  const ModelShape m = model(2, 8, 2);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{1, 1, part::bit(Precision::full), 4, 64}}, 2, 64});
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto here = favour(8, {0, 1});
  f->plan(scores(0, here), nothing_seen);
  const auto ahead = favour(8, {5, 6});  // the 75th percentile of 8 leaves 2
  f->look_ahead(scores(1, ahead), nothing_seen);
  REQUIRE(f->commands().submit.size == 2);
  const Copy first = f->commands().submit[0], second = f->commands().submit[1];
  CHECK(first.what == full(1, 5));
  CHECK(second.what == full(1, 6));
  CHECK_FALSE(first.demand);
  CHECK(is_prefetch(first.ticket));
  f->look_ahead(scores(1, ahead), nothing_seen);
  CHECK(f->commands().submit.size == 0);  // it is queued already
  f->finish(0, {}, nothing_seen);

  SUBCASE("landed") {
    const auto real = favour(8, {5, 6});
    const Plan p = f->plan(scores(1, real), all_landed);
    CHECK(experts(p.resident) == Ids{5, 6});
    CHECK(f->counters().prefetch.used == 2);
  }
  SUBCASE("in flight: the task waits for that very copy") {
    const auto real = favour(8, {5, 6});
    const Plan p = f->plan(scores(1, real), {Ticket{1000}, second.ticket, first.ticket});
    CHECK(experts(p.resident) == Ids{5});
    REQUIRE(experts(p.arriving) == Ids{6});
    CHECK(p.arriving[0].ready == second.ticket);
    CHECK(f->commands().submit.size == 0);
    CHECK(f->counters().of(Phase::decode).late_hits == 1);
  }
  SUBCASE("queued: dropped and submitted again as demand, into the same slot") {
    const auto real = favour(8, {6, 7});
    const Plan p = f->plan(scores(1, real), {Ticket{1000}, first.ticket, Ticket::none});
    REQUIRE(experts(p.arriving) == Ids{6, 7});
    REQUIRE(f->commands().drop.size == 1);
    CHECK(f->commands().drop[0] == second.ticket);
    REQUIRE(f->commands().submit.size == 2);
    CHECK(f->commands().submit[0].what == full(1, 6));
    CHECK(f->commands().submit[0].slot == second.slot);
    CHECK(f->commands().submit[0].demand);
    CHECK(f->counters().of(Phase::decode).misses == 2 + 2);
    CHECK(f->counters().prefetch.issued == 1);
    CHECK(f->counters().prefetch.dropped == 1);
  }
  SUBCASE("stale: queued for a layer that is planned without it") {
    const auto real = favour(8, {0, 1});
    f->plan(scores(1, real), nothing_seen);
    CHECK(f->commands().drop.size == 2);
    CHECK(f->commands().submit[0].slot == second.slot);  // its slot is free again, last freed first
    CHECK(f->counters().prefetch.issued == 0);
    CHECK(f->counters().prefetch.issued_bytes == 0);
    CHECK(f->counters().of(Phase::decode).bytes == 4 * 64);
  }
}

TEST_CASE("a prefetch never takes a leased or masked slot, demand takes a masked one") {
  const ModelShape m = model(2, 8, 2);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{0, 2, part::bit(Precision::full), 4, 64}}, 2, 64});
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto here = favour(8, {0, 1});
  f->plan(scores(0, here), nothing_seen);  // slots 0, 1 leased and in flight
  const auto ahead = favour(8, {5, 6});
  f->look_ahead(scores(1, ahead), nothing_seen);  // slots 2, 3
  const auto other = favour(8, {3, 4});
  f->look_ahead(scores(1, other), all_landed);
  CHECK(f->commands().submit.size == 0);  // two leased, two masked
  f->finish(0, {}, all_landed);
  const auto real = favour(8, {3, 5});
  const Plan p = f->plan(scores(1, real), all_landed);
  CHECK(experts(p.resident) == Ids{5});
  REQUIRE(f->commands().submit.size == 1);
  CHECK(f->commands().submit[0].what == full(1, 3));
}

TEST_CASE("in prefill, prefetches that find their pool full wait for their layer in stream slots") {
  // two layers of 4 experts, each with a pool of 2 slots (0 and 1, 2 and 3); 2 stream slots (4 and 5)
  const ModelShape m = model(2, 4, 2, 2);
  CoreFixture<stacks::CrossLayerLru> f(
      m, {{{0, 1, part::bit(Precision::full), 2, 64}, {1, 1, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.build();
  f->begin_step(StepOf(Phase::prefill, 2));
  auto rows = [](const Ids& first, const Ids& second) {
    std::vector<float> s = favour(4, first);
    const auto other = favour(4, second);
    s.insert(s.end(), other.begin(), other.end());
    return s;
  };
  const auto all = rows({0, 1}, {2, 3});
  const Plan p = f->plan(scores(0, all), nothing_seen);
  REQUIRE(experts(p.arriving) == Ids{0, 1, 2, 3});
  REQUIRE(p.arriving[2].slot == 4);
  REQUIRE(p.arriving[3].slot == 5);
  f->look_ahead(scores(1, all), nothing_seen);
  REQUIRE(f->commands().submit.size ==
          2);  // 0 and 2 go to the free slots of their pool: one vote each, as the others, but better scores
  CHECK(f->commands().submit[1].slot == 3);
  f->done(p.arriving.part(0, 1));
  CHECK(f->commands().submit.size == 0);  // a slot of layer 0's pool takes no prefetch
  const Fence fence = f->next_fence();
  f->done(p.arriving.part(2, 1));
  REQUIRE(f->commands().submit.size == 1);
  const Copy first = f->commands().submit[0];
  CHECK(first.what == full(1, 1));
  CHECK(first.slot == 4);
  CHECK(first.after == fence);
  CHECK_FALSE(first.demand);
  f->finish(0, {}, nothing_seen);
  REQUIRE(f->commands().submit.size == 1);
  const Copy second = f->commands().submit[0];
  CHECK(second.what == full(1, 3));
  CHECK(second.slot == 5);
  CHECK(f->counters().prefetch.issued == 4);

  SUBCASE("landed: a hit, whose slot is free again when its task is done") {
    const Plan q = f->plan(scores(1, all), all_landed);
    CHECK(experts(q.resident) == Ids{0, 2});
    REQUIRE(experts(q.arriving) == Ids{1, 3});
    CHECK(q.arriving[0].ready == first.ticket);
    CHECK(q.arriving[0].transient);
    CHECK(f->commands().submit.size == 0);
    CHECK(f->counters().of(Phase::prefill).hits == 4);
    CHECK(f->counters().of(Phase::prefill).prefetched == 4);
    CHECK(f->counters().of(Phase::prefill).prefetched_bytes == 4 * 64);
    f->done(q.arriving.part(0, 1));
    CHECK_FALSE(f->residency().is_staged(4));
    CHECK(f->residency().is_staged(5));
    f->finish(1, {}, all_landed);
    CHECK_FALSE(f->residency().is_staged(5));
    CHECK(f->residency().find(full(1, 3)) == no_slot);
  }
  SUBCASE("in flight: a late hit, which waits for that very copy") {
    const Plan q = f->plan(scores(1, all), {Ticket{1000}, second.ticket, first.ticket});
    REQUIRE(experts(q.arriving) == Ids{1, 3});
    CHECK(q.arriving[1].ready == second.ticket);
    CHECK(q.arriving[1].transient);
    CHECK(f->counters().of(Phase::prefill).hits == 3);
    CHECK(f->counters().of(Phase::prefill).late_hits == 1);
    f->done(q.arriving.part(0, 2));  // before the core has heard that it landed
    CHECK_FALSE(f->residency().is_staged(5));
  }
  SUBCASE("queued: submitted again as demand, into the same slot") {
    const Plan q = f->plan(scores(1, all), {Ticket{1000}, first.ticket, first.ticket});
    REQUIRE(experts(q.arriving) == Ids{1, 3});
    REQUIRE(f->commands().drop.size == 1);
    CHECK(f->commands().drop[0] == second.ticket);
    REQUIRE(f->commands().submit.size == 1);
    CHECK(f->commands().submit[0].slot == 5);
    CHECK(f->commands().submit[0].demand);
    CHECK(q.arriving[1].transient);
    CHECK(f->counters().of(Phase::prefill).misses == 4 + 1);
  }
  SUBCASE("not asked for: what is queued is taken back, what came is wasted, and both slots are free") {
    const auto one = rows({0, 2}, {0, 2});
    f->plan(scores(1, one), {Ticket{1000}, first.ticket, first.ticket});
    REQUIRE(f->commands().drop.size == 1);
    CHECK(f->commands().drop[0] == second.ticket);
    CHECK(f->counters().prefetch.dropped == 1);
    CHECK(f->counters().prefetch.wasted_bytes == 64);
    CHECK_FALSE(f->residency().is_staged(4));
    CHECK_FALSE(f->residency().is_staged(5));
  }
  SUBCASE("a step that ends here leaves them to the next plan, of whatever layer") {
    f->begin_step(StepOf(Phase::prefill, 2));
    const Plan q = f->plan(scores(0, all), all_landed);
    CHECK(experts(q.resident) == Ids{0, 1});
    CHECK(experts(q.arriving) == Ids{2, 3});
    CHECK(f->commands().submit.size == 2);
    CHECK(f->counters().prefetch.wasted_bytes == 2 * 64);
  }
}

TEST_CASE("a copy that needs the stream slot of a prefetched expert follows that one's task") {
  const ModelShape m = model(2, 5, 2, 3);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{0, 1, part::bit(Precision::full), 5, 64}}, 2, 64});  // none for layer 1
  f.build();
  f->begin_step(StepOf(Phase::prefill, 3));
  std::vector<float> all;
  for (const Ids& best : {Ids{0, 1}, Ids{2, 3}, Ids{4, 0}}) {
    const auto row = favour(5, best);
    all.insert(all.end(), row.begin(), row.end());
  }
  f->plan(scores(0, all), nothing_seen);
  f->look_ahead(scores(1, all), nothing_seen);
  REQUIRE(f->commands().submit.size == 2);  // no task of layer 0 needs a stream slot; 0 has most votes, then 2
  CHECK(f->commands().submit[0].what == full(1, 0));
  f->finish(0, {}, nothing_seen);
  const Plan q = f->plan(scores(1, all), all_landed);
  CHECK(q.resident.size == 0);
  REQUIRE(experts(q.arriving) == Ids{0, 2, 1, 3, 4});
  const std::uint32_t freed_by[] = {no_task, no_task, 0, 1, 2};
  for (std::uint32_t i = 0; i < 5; ++i) {
    CHECK(q.arriving[i].freed_by == freed_by[i]);
    CHECK(q.arriving[i].slot == 5 + i % 2);
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Fence fence = f->next_fence();
    f->done(q.arriving.part(i, 1));
    REQUIRE(f->commands().submit.size == 1);
    CHECK(f->commands().submit[0].ticket == q.arriving[i + 2].ready);
    CHECK(f->commands().submit[0].after == fence);
  }
}

TEST_CASE("what may not be needed is not prefetched to a stream slot where its copy would be waited for") {
  // Three layers of 4 experts. Layers 1 and 2 have slots for 2 of theirs, which hold 1 and 2. A layer leaves the link 100 ns.
  const ModelShape m = model(3, 4, 2, 2);
  for (const bool all_asked : {false, true}) {
    for (const Nanoseconds copy_ns : {0, 100, 1000}) {
      CoreFixture<stacks::CrossLayerLru> f(m, {{{0, 1, part::bit(Precision::full), 4, 64},
                                                {1, 1, part::bit(Precision::full), 2, 64},
                                                {2, 1, part::bit(Precision::full), 2, 64}},
                                               2,
                                               64});
      f.config.copy_ns[static_cast<unsigned>(Precision::full)] = copy_ns;
      f.build();
      const std::vector<Variant> there = {full(1, 1), full(1, 2), full(2, 1), full(2, 2)};
      f->preload(there, nothing_seen);
      f->begin_step(StepOf(Phase::prefill, 2));
      std::vector<float> s = favour(4, {0, 1});
      const auto second = favour(4, {2, static_cast<std::uint16_t>(all_asked ? 3 : 1)});
      s.insert(s.end(), second.begin(), second.end());
      f->plan(scores(0, s), all_landed);
      f->finish(0, {70, 10, 20, 0}, all_landed);
      f->plan(scores(1, s), all_landed);  // 1 and 2 are resident; 0 is asked for, and perhaps 3
      f->look_ahead(scores(2, s), all_landed);
      f->finish(1, {70, 10, 20, 0}, all_landed);
      const bool staged = f->residency().is_staged(8) || f->residency().is_staged(9);
      CHECK(staged == (all_asked || copy_ns <= 100));
    }
  }
}

TEST_CASE("in decode no prefetch goes to a stream slot") {
  const ModelShape m = model(2, 8, 2);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{0, 1, part::bit(Precision::full), 8, 64}}, 2, 64});
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto here = favour(8, {0, 1}), ahead = favour(8, {5, 6});
  f->plan(scores(0, here), nothing_seen);
  f->look_ahead(scores(1, ahead), nothing_seen);
  CHECK(f->commands().submit.size == 0);
  f->finish(0, {}, nothing_seen);
  CHECK(f->commands().submit.size == 0);
}

TEST_CASE("a long prefill admits only to free slots when asked to (invariant 8)") {
  const ModelShape m = model(1, 4, 1, 4);
  CoreFixture<stacks::LruCache> f(m, {{{0, 1, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.config.transient_prefill_rows = 2;
  f.build();
  auto prefill = [&](const Ids& rows) {
    f->begin_step(StepOf(Phase::prefill, static_cast<std::uint32_t>(rows.size())));
    std::vector<float> s;
    for (const std::uint16_t e : rows) {
      const auto row = favour(4, {e});
      s.insert(s.end(), row.begin(), row.end());
    }
    const Plan p = f->plan(scores(0, s), all_landed);
    std::vector<bool> transient;
    for (const Task& t : p.arriving) transient.push_back(t.transient);
    f->finish(0, {}, all_landed);
    return transient;
  };
  CHECK(prefill({0, 0, 0}) == std::vector<bool>{false});  // a free slot is never refused
  CHECK(prefill({1, 2, 2}) == std::vector<bool>{false, true});
  CHECK(prefill({3, 3}) == std::vector<bool>{false});  // short: evicts
}

TEST_CASE("after abandon nothing is leased, and what was on its way can be used") {
  const ModelShape m = model(1, 4, 2);
  CoreFixture<stacks::LruCache> f(m, {{{0, 1, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto s = favour(4, {0, 1});
  f->plan(scores(0, s), nothing_seen);
  f->abandon();
  for (std::uint32_t slot = 0; slot < f->residency().slots(); ++slot) CHECK_FALSE(f->residency().is_leased(slot));
  f->begin_step(StepOf(Phase::decode, 1));
  const Plan p = f->plan(scores(0, s), nothing_seen);
  CHECK(p.arriving.size == 2);
  CHECK(f->commands().submit.size == 0);
  CHECK(f->counters().of(Phase::decode).late_hits == 2);
}

TEST_CASE("routes may come from the engine instead of scores") {
  const ModelShape m = model(1, 4, 2);
  CoreFixture<stacks::LruCache> f(m, everything(m));
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const Route routes[] = {{3, 0.75F}, {1, 0.25F}};
  const Plan p = f->plan(0, {routes, 2}, {}, nothing_seen);
  CHECK(experts(p.arriving) == Ids{1, 3});
  CHECK(p.routes[0].expert == 3);
  CHECK(p.assignments[p.arriving[1].first] == 0);
}

TEST_CASE("recall and top-1 are counted by hand") {
  const ModelShape m = model(2, 8, 2);
  CoreFixture<stacks::CrossLayerLru> f(m, everything(m));
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto here = favour(8, {0, 1}), ahead = favour(8, {5, 6}), real = favour(8, {6, 2});
  f->plan(scores(0, here), nothing_seen);
  f->look_ahead(scores(1, ahead), nothing_seen);
  f->finish(0, {}, all_landed);
  f->plan(scores(1, real), all_landed);
  f->finish(1, {}, all_landed);
  const PrefetchCounts& p = f->counters().prefetch;
  CHECK(p.accuracy.recall() == doctest::Approx(0.5));  // 6 of {6, 2}
  CHECK(p.precision() == doctest::Approx(0.5));        // 6 of {5, 6}
  CHECK(p.accuracy.top1() == 0.0);                     // 5 was predicted as the best, 6 was best
}

TEST_CASE("preloading fills free slots only, and counts apart") {
  const ModelShape m = model(2, 4, 2);
  CoreFixture<stacks::LruCache> f(m, pool_per_layer(m, (2 + 3) * 64));
  f.build();
  const Variant wanted[] = {full(0, 0), full(1, 0), full(0, 1), full(1, 1), full(0, 0)};
  std::uint32_t at = 0;
  std::vector<ExpertId> copied;
  while (at < 5) {
    at += f->preload({wanted + at, 5 - at}, nothing_seen);
    for (const Copy& c : f->commands().submit) copied.push_back(c.what.id);
  }
  CHECK(copied == std::vector<ExpertId>{{0, 0}, {1, 0}, {0, 1}});
  CHECK(f->counters().preload_bytes == 3 * 64);
  CHECK(f->counters().of(Phase::decode).bytes == 0);
}

TEST_CASE("a core moved byte for byte goes on as if nothing had happened") {
  const ModelShape m = model(2, 8, 2);
  CoreConfig<stacks::CrossLayerLru> config;
  config.model = m;
  config.allotment = pool_per_layer(m, 8 * 64);
  const std::size_t bytes = Core<stacks::CrossLayerLru>::storage_bytes(config);
  auto block = [&] {
    return std::unique_ptr<std::byte, decltype(&std::free)>(
        static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), &std::free);
  };
  auto a = block(), b = block();
  auto* core = Core<stacks::CrossLayerLru>::create(a.get(), config);
  core->begin_step(StepOf(Phase::decode, 1));
  const auto first = favour(8, {1, 2}), second = favour(8, {2, 3});
  core->plan(scores(0, first), nothing_seen);
  core->finish(0, {}, all_landed);
  std::memcpy(b.get(), a.get(), bytes);
  std::memset(a.get(), 0, bytes);
  auto* moved = reinterpret_cast<Core<stacks::CrossLayerLru>*>(b.get());
  moved->begin_step(StepOf(Phase::decode, 1));
  const Plan p = moved->plan(scores(0, second), all_landed);
  CHECK(experts(p.resident) == Ids{2});
  CHECK(experts(p.arriving) == Ids{3});
}

TEST_CASE("a long prefill does not evict by prefetch either (invariant 8)") {
  const ModelShape m = model(2, 8, 2, 4);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{0, 2, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.config.transient_prefill_rows = 1;
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto s = favour(8, {0, 1});
  f->plan(scores(0, s), nothing_seen);
  f->finish(0, {}, all_landed);
  f->begin_step(StepOf(Phase::prefill, 2));
  std::vector<float> rows = favour(8, {4, 5});
  rows.insert(rows.end(), s.begin(), s.end());
  f->look_ahead(scores(1, rows), all_landed);
  REQUIRE(f->commands().submit.size == 2);  // both cached experts stay: these wait in stream slots
  for (const Copy& c : f->commands().submit) CHECK(c.slot >= 2);
  CHECK(f->residency().state(full(0, 0)) == State::resident);
  CHECK(f->residency().state(full(0, 1)) == State::resident);
}

TEST_CASE("done out of order, or twice, starts no copy into a slot that is still read") {
  const ModelShape m = model(1, 6, 4);
  CoreFixture<stacks::OnDemand> f(m, stream_only(m, 2 * 64));
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto s = favour(6, {0, 1, 2, 3});
  const Plan p = f->plan(scores(0, s), nothing_seen);
  f->done(p.arriving.part(1, 1));
  CHECK(f->commands().submit.size == 0);  // the next copy belongs into task 0's slot
  f->done(p.arriving.part(0, 1));
  REQUIRE(f->commands().submit.size == 1);
  CHECK(f->commands().submit[0].slot == p.arriving[0].slot);
  f->done(p.arriving.part(0, 1));  // again, although the slot is task 2's now
  CHECK(f->commands().submit.size == 0);
  CHECK(f->residency().is_leased(p.arriving[2].slot));
}

TEST_CASE("prefetches are held back until every demand copy of the layer is on its way (invariant 4)") {
  const ModelShape m = model(2, 8, 4);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{1, 1, part::bit(Precision::full), 4, 64}}, 2, 64});
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  const auto here = favour(8, {0, 1, 2, 3}), ahead = favour(8, {5, 6});
  const Plan p = f->plan(scores(0, here), nothing_seen);  // layer 0 has no slots: two waves of two
  f->look_ahead(scores(1, ahead), nothing_seen);
  CHECK(f->commands().submit.size == 0);
  f->done(p.arriving.part(0, 1));
  REQUIRE(f->commands().submit.size == 1);
  f->done(p.arriving.part(1, 1));
  REQUIRE(f->commands().submit.size == 3);
  CHECK(f->commands().submit[0].demand);
  CHECK(f->commands().submit[1].what == full(1, 5));
  CHECK(f->commands().submit[2].what == full(1, 6));
}

namespace {

/// Selects the precision that the test sets.
struct Told {
  Precision wants = Precision::full;
  FERRY_HD void select(Phase /*phase*/, bool /*demand*/, View<Request> requests) const noexcept {
    for (Request& r : requests) r.want.precision = wants;
  }
  FERRY_HD std::uint8_t precisions() const noexcept { return 1U << 0U | 1U << 2U | 1U << 4U; }
};
using ToldStack = Stack<NoPrediction, Lru, Told, stacks::LoadEverything, TopK>;

/// How a layer treats one expert that is resident as `held` and asked for as `wanted`.
struct Cell {
  std::uint64_t hits, misses, skipped;
  Precision runs;  // skip: it does not run
};
Cell cell(Precision held, Precision wanted) {
  const ModelShape m = model(1, 4, 1, 1, 256, 64);
  CoreFixture<ToldStack> f(m, high_low_pools(m, 4000, Precision::full, Precision::int4, 10));
  f.config.precision.wants = wanted;
  f.build();
  if (held != Precision::skip) {
    const Variant v{{0, 2}, held};
    f->preload({&v, 1}, nothing_seen);
  }
  f->begin_step(StepOf(Phase::decode, 1));
  const auto s = favour(4, {2});
  const Plan p = f->plan(scores(0, s), all_landed);
  const Outcomes& o = f->counters().of(Phase::decode);
  CHECK(o.requests == 1);
  const std::uint32_t tasks = p.resident.size + p.arriving.size;
  REQUIRE(tasks == o.hits + o.misses);
  Precision runs = Precision::skip;
  if (tasks > 0) runs = p.resident.size > 0 ? p.resident[0].what.precision : p.arriving[0].what.precision;
  CHECK((p.routes[0].expert == no_expert) == (tasks == 0));
  return {o.hits, o.misses, o.skipped, runs};
}

}  // namespace

TEST_CASE("what is wanted against what is resident, cell by cell of the design's table") {
  constexpr Precision none = Precision::skip, low = Precision::int4, high = Precision::full;
  auto is = [](const Cell& c, std::uint64_t hits, std::uint64_t misses, std::uint64_t skipped, Precision runs) {
    return c.hits == hits && c.misses == misses && c.skipped == skipped && c.runs == runs;
  };
  CHECK(is(cell(none, high), 0, 1, 0, high));  // load high
  CHECK(is(cell(low, high), 0, 1, 0, high));   // load high
  CHECK(is(cell(high, high), 1, 0, 0, high));
  CHECK(is(cell(none, low), 0, 1, 0, low));  // load low
  CHECK(is(cell(low, low), 1, 0, 0, low));
  CHECK(is(cell(high, low), 1, 0, 0, high));  // uses high
  CHECK(is(cell(none, Precision::skip), 0, 0, 1, none));
  CHECK(is(cell(low, Precision::skip), 1, 0, 0, low));
  CHECK(is(cell(high, Precision::skip), 1, 0, 0, high));
}

TEST_CASE("substituted experts: the outcomes sum to what the gate asked for, and a substitute is not counted again") {
  using S = Stack<NoPrediction, Lru, FixedPrecision, stacks::LoadEverything, ExpertCacheRouter>;
  const ModelShape m = model(1, 6, 2, 2);
  CoreFixture<S> f(m, one_pool(m, (2 + 2) * 64));
  f.config.router.alpha = 0.5F;
  f.config.top_score_alpha = 0.5F;
  f.build();
  const Variant resident[] = {full(0, 0), full(0, 3)};
  f->preload({resident, 2}, nothing_seen);
  f->begin_step(StepOf(Phase::decode, 2));
  // Row 0: beta = 0.20 (expert 2), bar 0.30: expert 0 is top-score, 1 low-score and absent; 3 is resident, above
  // 0.10, and takes its place. Row 1: 4 is top-score (0.5 against beta 0.15), 5 low-score and absent; 0 and 3 both
  // qualify (at least 0.075): one of them takes its place.
  const std::vector<float> s = {0.35F, 0.22F, 0.20F, 0.19F, 0.02F, 0.02F, 0.10F, 0.05F, 0.05F, 0.15F, 0.50F, 0.15F};
  const Plan p = f->plan(scores(0, s), all_landed);
  // The gate asked for 0, 1 (row 0), 4 and 3 or 5 (row 1: both 0.15, the lower index): 3 is resident.
  CHECK(p.routes[0].expert == 0);
  CHECK(p.routes[1].expert == 3);
  CHECK(p.routes[1].instead_of == 1);
  CHECK(p.routes[2].expert == 4);
  CHECK(p.routes[3].expert == 3);
  const Outcomes& o = f->counters().of(Phase::decode);
  CHECK(o.requests == 4);      // 0, 1, 3, 4
  CHECK(o.hits == 2);          // 0, 3
  CHECK(o.misses == 1);        // 4
  CHECK(o.substituted == 1);   // 1
  CHECK(o.top_requests == 2);  // 0, 4
  CHECK(o.top_misses == 1);    // 4
  CHECK(o.low_requests == 2);  // 1, 3
  CHECK(o.low_misses == 0);    // 1 was substituted, 3 is there
  CHECK(o.miss_bytes == 64);
}

TEST_CASE("a substitute that the gate did not ask for is run and not counted") {
  using S = Stack<NoPrediction, Lru, FixedPrecision, stacks::LoadEverything, ExpertCacheRouter>;
  const ModelShape m = model(1, 4, 1, 1);
  CoreFixture<S> f(m, one_pool(m, (2 + 1) * 64));
  f.config.router.alpha = 0.5F;
  f.build();
  const Variant resident = full(0, 3);
  f->preload({&resident, 1}, nothing_seen);
  f->begin_step(StepOf(Phase::decode, 1));
  const std::vector<float> s = {0.3F, 0.25F, 0.2F, 0.25F};  // beta 0.25: 0 is low-score, 3 stands in
  const Plan p = f->plan(scores(0, s), all_landed);
  REQUIRE(p.resident.size == 1);
  CHECK(p.resident[0].what == full(0, 3));
  const Outcomes& o = f->counters().of(Phase::decode);
  CHECK(o.requests == 1);
  CHECK(o.substituted == 1);
  CHECK(o.hits + o.misses == 0);
}

TEST_CASE("what a router leaves out is counted as skipped, neither touched nor loaded, with scores and with routes") {
  using S = Stack<NoPrediction, Lru, FixedPrecision, stacks::LoadEverything, ExpertSkipping>;
  const ModelShape m = model(1, 6, 3, 2);
  for (const bool with_scores : {true, false}) {
    CAPTURE(with_scores);
    CoreFixture<S> f(m, one_pool(m, (2 + 3) * 64));
    f.config.router.max_loss = 1;
    f.config.router.loss_rate = 100;  // up to a squared weight of 0.01
    f.build();
    const Variant resident = full(0, 2);
    f->preload({&resident, 1}, nothing_seen);
    f->begin_step(StepOf(Phase::decode, 2));
    // Row 0 leaves out 2, which is there, and 3. Row 1 keeps its second and leaves out 3, too.
    const std::vector<float> s = {.6F, .02F, .09F, .05F, .01F, .01F, .02F, .3F, .01F, .05F, .6F, .02F};
    const Route routes[] = {{0, .6F}, {2, .09F}, {3, .05F}, {4, .6F}, {1, .3F}, {3, .05F}};
    const Plan p = with_scores ? f->plan(scores(0, s), all_landed) : f->plan(0, {routes, 6}, {}, all_landed);
    CHECK(p.routes[0].expert == 0);
    CHECK(p.routes[1].expert == no_expert);
    CHECK(p.routes[1].instead_of == 2);
    CHECK(p.routes[2].expert == no_expert);
    CHECK(p.routes[4].expert == 1);
    CHECK(p.routes[5].instead_of == 3);
    CHECK(p.resident.size == 0);
    CHECK(p.arriving.size == 3);
    const Outcomes& o = f->counters().of(Phase::decode);
    CHECK(o.requests == 5);  // 0, 2, 3, 4, 1
    CHECK(o.skipped == 2);
    CHECK(o.misses == 3);
    CHECK(o.hits + o.substituted == 0);
  }
}

TEST_CASE("prefetches walk to the first layer with a miss, mask what is there, and stop (HOBBIT's Fig. 8)") {
  using S = Stack<StackedGates, Lru, FixedPrecision, stacks::HobbitSchedule, TopK>;
  const ModelShape m = model(4, 4, 1);
  CoreFixture<S> f(m, one_pool(m, (2 + 3) * 64));
  f.config.predictor.depth = 3;
  f.build();
  const Variant there[] = {full(1, 0), full(0, 0)};
  f->preload({there, 2}, nothing_seen);
  f->begin_step(StepOf(Phase::decode, 1));
  const auto zero = favour(4, {0}), one = favour(4, {1});
  f->plan(scores(0, zero), all_landed);
  CHECK(f->look_ahead_depth() == 3);
  CHECK(f->layer_ahead(RowSource::gate_input, 1) == 1);
  f->look_ahead(scores(1, zero), all_landed);  // is there
  CHECK(f->commands().submit.size == 0);
  CHECK(f->layer_ahead(RowSource::gate_input, 2) == 2);
  f->look_ahead(scores(2, one), all_landed);
  REQUIRE(f->commands().submit.size == 1);
  CHECK(f->commands().submit[0].what == full(2, 1));
  CHECK(f->layer_ahead(RowSource::gate_input, 3) == no_layer);
  f->look_ahead(scores(3, one), all_landed);  // nothing is prefetched, although the engine still asks
  CHECK(f->commands().submit.size == 0);
  f->finish(0, {}, all_landed);
  f->plan(scores(1, zero), all_landed);  // a new window
  CHECK(f->layer_ahead(RowSource::gate_input, 1) == 2);
  f->finish(1, {}, all_landed);
}

TEST_CASE("the transfer budget counts all look-aheads since the plan, by the times that were measured") {
  using S = Stack<CrossLayerGate, Lru, FixedPrecision, stacks::FateSchedule, TopK>;
  const ModelShape m = model(2, 8, 2);
  const auto here = favour(8, {0, 1}), ahead = favour(8, {2, 3, 4, 5, 6, 7}), other = favour(8, {0, 1, 2, 3, 4, 5});
  for (const bool known : {false, true}) {
    CoreFixture<S> f(m, everything(m));
    f.config.predictor.percentile = 30;  // 8 - 1 - floor(0.3 * 7) = 5 candidates
    f.config.copy_ns[static_cast<unsigned>(Precision::full)] = 30;
    f.build();
    f->begin_step(StepOf(Phase::decode, 1));
    f->plan(scores(0, here), all_landed);
    f->finish(0, known ? Times{40, 10, 25, 0} : Times{}, all_landed);  // T = 40 + 10 + 2 * 25 = 100
    f->begin_step(StepOf(Phase::decode, 1));
    f->plan(scores(0, here), all_landed);
    f->look_ahead(scores(1, ahead), all_landed);
    CHECK(f->commands().submit.size == (known ? 3 : 5));  // floor(100 / 30)
    f->look_ahead(scores(1, other), all_landed);
    CHECK(f->commands().submit.size == (known ? 0 : 2));  // 0 and 1; 10 ns are left
    f->finish(0, {}, all_landed);
    f->plan(scores(1, here), all_landed);
    f->finish(1, {}, all_landed);
  }
}

namespace {

/// Notes the calls of the optional hooks.
struct Watching : Lru {
  std::uint32_t observed = 0, uses = 0, resets = 0;
  float best = 0;
  FERRY_HD void observe(const Scores& scores) noexcept {
    ++observed;
    best = scores.select[1];
  }
  FERRY_HD void used(Variant /*what*/) noexcept { ++uses; }
  FERRY_HD void reset() noexcept { ++resets; }
};

using WatchingStack = Stack<NoPrediction, Watching, Told, stacks::LoadEverything, TopK>;

}  // namespace

TEST_CASE("every pool of a layer sees its scores and each use, and the end of the last live sequence") {
  const ModelShape m = model(2, 4, 2, 2, 256, 64);
  CoreFixture<WatchingStack> f(m, high_low_pools(m, 6000, Precision::full, Precision::int4, 10));
  f.build();
  f->begin_step(StepOf(Phase::decode, 2));  // sequences 0 and 1
  std::vector<float> s = favour(4, {0, 1});
  const auto second = favour(4, {1, 2});
  s.insert(s.end(), second.begin(), second.end());
  f->plan(scores(0, s), all_landed);
  f->finish(0, {}, all_landed);
  for (std::uint16_t pool = 0; pool < 2; ++pool) {
    CHECK(f->cache(pool).observed == 1);
    CHECK(f->cache(pool).best == s[1]);
    CHECK(f->cache(pool).uses == 3);  // experts 0, 1, 2
  }
  f->end_sequence(1);
  CHECK(f->cache(0).resets == 0);
  f->end_sequence(0);
  CHECK(f->cache(0).resets == 0);  // the step may go on
  f->begin_step(StepOf(Phase::decode, 1));
  for (std::uint16_t pool = 0; pool < 2; ++pool) CHECK(f->cache(pool).resets == 1);
}

TEST_CASE("Eq. 2 from a gate row to precisions, thresholds inclusive (HOBBIT, section 3.2)") {
  using S = Stack<NoPrediction, Lru, ImportanceThresholds, stacks::LoadEverything, TopK>;
  const ModelShape m = model(1, 8, 4, 1, 256, 64);
  CoreFixture<S> f(m, high_low_pools(m, 4000, Precision::full, Precision::int4));
  f.config.precision.t1 = 0.5F;
  f.config.precision.t2 = 0.875F;
  f.build();
  f->begin_step(StepOf(Phase::decode, 1));
  // The four chosen have 0.4, 0.3, 0.08 and 0.02 of 0.8: shares 1/2, 3/8, 1/10, 1/40; not normalised by the gate.
  // s = 0, 0.5, 0.875, 0.975: high, high (s = T1), low (s = T2), skipped.
  const std::vector<float> s = {0.02F, 0.0F, 0.4F, 0.0F, 0.3F, 0.0F, 0.08F, 0.0F};
  const std::vector<float> exact = {0.03125F, 0.0F, 0.5F, 0.0F, 0.375F, 0.0F, 0.09375F, 0.0F};  // of 1, in binary
  for (const auto& row : {exact, s}) {
    const Plan p = f->plan(scores(0, row), all_landed);
    if (&row != &exact && p.arriving.size == 0) continue;
    for (const View<const Task>& tasks : {p.resident, p.arriving}) {
      for (const Task& t : tasks) {
        if (t.what.id.expert == 2 || t.what.id.expert == 4) CHECK(t.what.precision == Precision::full);
        if (t.what.id.expert == 6) CHECK(t.what.precision == Precision::int4);
        CHECK(t.what.id.expert != 0);
      }
    }
    f->finish(0, {}, all_landed);
  }
  CHECK(f->counters().of(Phase::decode).skipped == 2);
  CHECK(f->counters().of(Phase::decode).misses == 3);
  CHECK(f->counters().of(Phase::decode).hits == 3);
}

namespace {

struct Listens {
  static constexpr RowSource decode_rows = RowSource::none, prefill_rows = RowSource::none;
  std::uint32_t told = 0, told_at_predict = 0, told_at_end = 0;
  std::uint16_t chosen[6] = {};
  std::uint32_t row = 0;
  void reserve(Carver& /*carve*/, const Shape& /*shape*/) {}
  void observe(std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    told += layer + 1U;
    for (std::uint32_t i = 0; i < taken.size; ++i) chosen[i] = gate_choice(taken[i]);
    row = rows.size > 0 ? rows[0] : 9;
  }
  void predict(Phase /*phase*/, const Scores& /*scores*/, Out<Request>& /*out*/) noexcept { told_at_predict = told; }
  void end_sequence(std::uint32_t /*sequence*/) noexcept { told_at_end = told; }
};

}  // namespace

TEST_CASE("a predictor is told of a plan behind it, once, ahead of whatever may ask it: gate choices, and which rows") {
  using S = Stack<Listens, Lru, ImportanceThresholds, stacks::LoadEverything, TopK>;
  const ModelShape m = model(2, 4, 3, 2, 256, 64);
  CoreFixture<S> f(m, high_low_pools(m, 2000, Precision::full, Precision::int4));
  f.config.precision.t1 = 0.5F;
  f.config.precision.t2 = 0.7F;
  f.build();
  const Listens& listens = f->predictor();
  f->begin_step(StepOf(Phase::decode, 2));
  const std::vector<float> s = {0.5F, 0.2F, 0.0F, 0.3F};
  std::uint32_t row = 1;
  Scores of_layer = scores(0, s);
  of_layer.rows = {&row, 1};
  Plan p = f->plan(of_layer, all_landed);
  CHECK(listens.told == 0);
  CHECK(p.routes[2].expert == no_expert);  // expert 1's weight is too small
  CHECK(p.routes[2].instead_of == 1);
  row = 0;  // the engine may overwrite its array
  f->look_ahead({1, {}, {}}, all_landed);
  CHECK(listens.told_at_predict == 1);
  CHECK(listens.chosen[0] == 0);
  CHECK(listens.chosen[1] == 3);
  CHECK(listens.chosen[2] == 1);
  CHECK(listens.row == 1);
  f->finish(0, {}, all_landed);
  CHECK(listens.told == 1);

  of_layer.layer = 1;
  f->plan(of_layer, all_landed);
  CHECK(listens.told == 1);
  f->finish(1, {}, all_landed);
  CHECK(listens.told == 3);
  CHECK(listens.row == 0);

  f->begin_step(StepOf(Phase::decode, 2));
  f->plan(scores(0, std::vector<float>(8, 0.25F)), all_landed);
  f->end_sequence(0);  // in the middle of the layer
  CHECK(listens.told_at_end == 4);
  CHECK(listens.row == 9);
  f->finish(0, {}, all_landed);
  f->plan(scores(1, std::vector<float>(8, 0.25F)), all_landed);
  CHECK(listens.told == 4);
  f->abandon();
  CHECK(listens.told == 6);
  f->end_sequence(0);  // again
  f->end_sequence(12345);
  CHECK(listens.told_at_end == 4);
  f->end_sequence(1);
  CHECK(listens.told_at_end == 6);
}

TEST_CASE("a queued prefetch of another precision than is wanted is taken back") {
  const ModelShape m = model(2, 4, 1, 1, 256, 64);
  using S = Stack<CrossLayerGate, Lru, Told, stacks::LoadEverything, TopK>;
  CoreFixture<S> f(m, high_low_pools(m, 4000, Precision::full, Precision::int4));
  f.config.predictor.plain_top_k = true;
  f.config.precision.wants = Precision::full;
  f.build();
  const auto s = favour(4, {1});
  f->begin_step(StepOf(Phase::decode, 1));
  f->plan(scores(0, s), nothing_seen);
  f->look_ahead(scores(1, s), nothing_seen);
  REQUIRE(f->commands().submit.size == 1);
  const Copy prefetch = f->commands().submit[0];
  CHECK(prefetch.what.precision == Precision::full);
  f->finish(0, {}, nothing_seen);
  const_cast<Told&>(f->precision()).wants = Precision::int4;
  const Plan p = f->plan(scores(1, s), nothing_seen);
  REQUIRE(f->commands().drop.size == 1);
  CHECK(f->commands().drop[0] == prefetch.ticket);
  REQUIRE(p.arriving.size == 1);
  CHECK(p.arriving[0].what.precision == Precision::int4);
  REQUIRE(f->commands().submit.size == 1);
  CHECK(f->commands().submit[0].what == p.arriving[0].what);  // and not that the other copy is expedited
  CHECK(f->commands().submit[0].slot == p.arriving[0].slot);
  CHECK(f->counters().of(Phase::decode).miss_bytes == 256 + 64);
}

TEST_CASE("a mask ends with the plan of its layer") {
  const ModelShape m = model(2, 8, 2);
  CoreFixture<stacks::CrossLayerLru> f(m, {{{0, 2, part::bit(Precision::full), 4, 64}}, 2, 64});
  f.build();
  const auto here = favour(8, {0, 1}), ahead = favour(8, {5, 6}), other = favour(8, {3, 4});
  f->begin_step(StepOf(Phase::decode, 1));
  f->plan(scores(0, here), nothing_seen);
  f->look_ahead(scores(1, ahead), nothing_seen);  // slots 2 and 3, masked
  f->finish(0, {}, all_landed);
  f->plan(scores(1, ahead), all_landed);
  f->finish(1, {}, all_landed);
  f->begin_step(StepOf(Phase::decode, 1));
  f->plan(scores(0, here), all_landed);  // slots 0 and 1 leased
  f->look_ahead(scores(1, other), all_landed);
  REQUIRE(f->commands().submit.size == 2);
  for (const Copy& c : f->commands().submit) CHECK(c.slot >= 2);
}

TEST_CASE("a queued prefetch that the host computes after all is taken back, and leaves no lease") {
  using HostInstead = Stack<CrossLayerGate, Lru, FixedPrecision, Schedule<NoLimit, ArrivalOrder, HostInDecode>, TopK>;
  const ModelShape m = model(2, 8, 2);
  CoreFixture<HostInstead> f(m, {{{0, 2, part::bit(Precision::full), 4, 64}}, 2, 64});
  f.build();
  const auto here = favour(8, {0, 1}), ahead = favour(8, {5, 6});
  f->begin_step(StepOf(Phase::decode, 1));
  CHECK(experts(f->plan(scores(0, here), nothing_seen).host) == Ids{0, 1});
  f->look_ahead(scores(1, ahead), nothing_seen);
  CHECK(f->commands().submit.size == 2);
  f->finish(0, {}, nothing_seen);
  CHECK(experts(f->plan(scores(1, ahead), nothing_seen).host) == Ids{5, 6});
  CHECK(f->commands().drop.size == 2);
  for (std::uint32_t s = 0; s < 4; ++s) {
    CHECK(f->residency().slot(s).state == State::absent);
    CHECK_FALSE(f->residency().is_leased(s));
  }
}

TEST_CASE("in a model of one layer, the layer ahead is that of the next step") {
  const ModelShape m = model(1, 4, 1);
  CoreFixture<stacks::LayerStream> f(m, everything(m));
  f.build();
  const auto s = favour(4, {2});
  f->begin_step(StepOf(Phase::decode, 1));
  f->plan(scores(0, s), nothing_seen);
  REQUIRE(f->layer_ahead(RowSource::none, 1) == 0);
  f->look_ahead({0, {}, {}}, nothing_seen);
  f->finish(0, {}, all_landed);
  f->begin_step(StepOf(Phase::decode, 1));
  f->plan(scores(0, s), all_landed);
  f->finish(0, {}, all_landed);
  CHECK(f->prediction_accuracy(1, 0).needed == 1);
  CHECK(f->prediction_accuracy(1, 0).predicted == 1);
}

TEST_CASE("times of a prefill do not set the budget of a decode step") {
  using S = Stack<CrossLayerGate, Lru, FixedPrecision, stacks::FateSchedule, TopK>;
  const ModelShape m = model(2, 8, 2, 2);
  CoreFixture<S> f(m, everything(m));
  f.config.predictor.percentile = 30;  // five candidates
  f.config.copy_ns[static_cast<unsigned>(Precision::full)] = 100;
  f.build();
  const auto here = favour(8, {0, 1}), ahead = favour(8, {2, 3, 4, 5, 6, 7});
  auto step = [&](Phase phase, const Times& times) {
    f->begin_step(StepOf(phase, 1));
    f->plan(scores(0, here), all_landed);
    f->look_ahead(scores(1, ahead), all_landed);
    const std::uint32_t n = f->commands().submit.size;
    f->finish(0, times, all_landed);
    f->abandon();
    return n;
  };
  f->begin_step(StepOf(Phase::decode, 1));
  f->plan(scores(0, here), all_landed);
  f->finish(0, {110, 0, 10, 0}, all_landed);  // T = 110 + 2 * 10
  f->abandon();
  f->begin_step(StepOf(Phase::prefill, 2));
  std::vector<float> two = here;
  two.insert(two.end(), here.begin(), here.end());
  f->plan(scores(0, two), all_landed);
  f->finish(0, {800, 80, 10, 0}, all_landed);
  f->abandon();
  CHECK(step(Phase::decode, {}) == 1);
}

TEST_CASE("ferry: what the host takes is learned from what a layer took, and what is resident goes there, too") {
  CoreFixture<stacks::Ferry> f(model(1, 8, 2), {{{0, 1, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.config.copy_ns[static_cast<unsigned>(Precision::full)] = 100;
  f.config.costs.device_ns[static_cast<unsigned>(Precision::full)] = 5;
  f.build();
  const Variant first[] = {full(0, 0), full(0, 1)};
  f->preload({first, 2}, nothing_seen);
  const auto step = [&](std::uint16_t a, std::uint16_t b) {
    f->begin_step(StepOf(Phase::decode, 1));
    const auto s = favour(8, {a, b});
    return f->plan(scores(0, s), all_landed);
  };
  Plan p = step(0, 1);
  CHECK(experts(p.resident) == Ids{0, 1});
  f->finish(0, {0, 0, 5, 4}, all_landed);  // a time for a host that computed nothing is not learned
  p = step(0, 1);
  CHECK(experts(p.resident) == Ids{0, 1});
  f->finish(0, {}, all_landed);
  p = step(2, 3);
  CHECK(experts(p.host) == Ids{2, 3});
  f->finish(0, {0, 0, 0, 4}, all_landed);
  p = step(0, 1);  // 5 and 4 at once, instead of 10
  CHECK(experts(p.resident) == Ids{0});
  CHECK(experts(p.host) == Ids{1});
  f->finish(0, {}, all_landed);
}

TEST_CASE("ferry: misses on the host, the most wanted copied behind, and nobody waits longer than the host takes") {
  CoreFixture<stacks::Ferry> f(model(1, 8, 2), {{{0, 1, part::bit(Precision::full), 2, 64}}, 2, 64});
  f.config.copy_ns[static_cast<unsigned>(Precision::full)] = 100;
  f.config.costs.device_ns[static_cast<unsigned>(Precision::full)] = 5;
  f.config.costs.host_ns[static_cast<unsigned>(Precision::full)] = 20;
  f.build();
  const Variant first[] = {full(0, 0), full(0, 1)};
  f->preload({first, 2}, nothing_seen);
  Seen seen = all_landed;
  const auto step = [&](std::uint16_t a, std::uint16_t b, Nanoseconds link_ns) {
    seen.link_ns = link_ns;
    f->begin_step(StepOf(Phase::decode, 1));
    const auto s = favour(8, {a, b});
    return f->plan(scores(0, s), seen);
  };
  Plan p = step(2, 3, 0);
  CHECK(experts(p.host) == Ids{2, 3});
  REQUIRE(f->commands().submit.size == 1);
  const Copy two = f->commands().submit[0];
  CHECK(two.what == full(0, 2));
  CHECK(two.slot == 0);
  CHECK_FALSE(two.demand);
  CHECK(f->counters().prefetch.promoted == 1);
  seen.prefetch_landed = Ticket::none;  // begun, not landed
  f->finish(0, {}, seen);

  p = step(2, 3, 50);  // 55 for the copy and then the device, 40 for both on the host
  CHECK(experts(p.host) == Ids{2, 3});
  CHECK(p.arriving.size == 0);
  CHECK(f->commands().submit.size == 0);  // one at a time
  f->finish(0, {}, seen);

  p = step(2, 3, 10);  // 15, beside 20 for the other on the host
  CHECK(experts(p.arriving) == Ids{2});
  CHECK(p.arriving[0].ready == two.ticket);
  CHECK(experts(p.host) == Ids{3});
  seen = all_landed;
  f->finish(0, {}, seen);

  p = step(2, 3, 0);
  CHECK(experts(p.resident) == Ids{2});
  CHECK(experts(p.host) == Ids{3});
  REQUIRE(f->commands().submit.size == 1);
  CHECK(f->commands().submit[0].what == full(0, 3));  // for 1, which was never used
  CHECK(f->commands().submit[0].slot == 1);
  f->finish(0, {}, seen);

  p = step(2, 3, 0);
  CHECK(experts(p.resident) == Ids{2, 3});
  CHECK(f->commands().submit.size == 0);  // no absent expert is wanted more than a resident one
  f->finish(0, {}, seen);

  const Outcomes& o = f->counters().of(Phase::decode);
  CHECK(o.requests == 10);
  CHECK(o.hits == 3);
  CHECK(o.late_hits == 1);
  CHECK(o.host_computed == 6);
  CHECK(o.misses == 0);
  CHECK(f->counters().prefetch.used == 2);
  CHECK(f->counters().prefetch.wasted_bytes == 0);
}

namespace {

/// LRU that wants what was asked for last and has no slot in the pool.
struct WantsTheLast : Lru {
  ExpertId want{0, no_expert};
  void touch(Variant w, std::uint32_t slot) noexcept {
    if (slot == no_slot) want = w.id;
    Lru::touch(w, slot);
  }
  ExpertId wanted() noexcept { return want; }
  Nanoseconds more_saved(ExpertId, std::uint32_t) const noexcept { return 1; }
  void replace(std::uint32_t slot, Variant w, bool demand) noexcept {
    if (w.id == want) want.expert = no_expert;
    Lru::replace(slot, w, demand);
  }
};
struct AlwaysPromotes : DeviceOnly {
  using DeviceOnly::split;
  bool promotes(const Request&, Nanoseconds, const LayerCosts&) const noexcept { return true; }
};

/// LRU that counts what it is told of uses of layer 1, by expert.
struct CountsSaved : Lru {
  static inline std::vector<int> told;
  void saved(View<const Request> uses, std::uint32_t, Nanoseconds) noexcept {
    for (const Request& r : uses) told[r.want.id.expert] += r.want.id.layer;
  }
};

}  // namespace

TEST_CASE("an expert that waits in a stream slot is not promoted, since it would be in two slots") {
  using S = Stack<EveryExpert, WantsTheLast, FixedPrecision, Schedule<NoLimit, ArrivalOrder, AlwaysPromotes>, TopK>;
  CoreConfig<S> c;
  c.model = model(2, 4, 1, 2);
  c.allotment = one_pool(c.model, Budget(64 * 6, 4));  // two slots in the pool
  CommandBuffer link;
  OffloadPipeline<S, CommandBuffer> pipe(c, link);
  const std::vector<float> both = {4, 3, 2, 1, 1, 3, 2, 4}, last = {1, 2, 3, 4};
  pipe.begin_step(StepOf(Phase::prefill, 2));
  const Plan first = pipe.plan(scores(0, both));
  pipe.look_ahead();
  pipe.done(first.arriving);
  pipe.finish(0);  // layer 1's experts are in stream slots, and the step ends here
  for (int i = 0; i < 3; ++i) {
    pipe.begin_step(StepOf(Phase::decode, 1));
    const Plan p = pipe.plan(scores(1, last));
    const Residency& there = pipe.core().residency();
    for (std::uint16_t e = 0; e < 4; ++e) {
      int slots = 0;
      for (std::uint32_t s = 0; s < there.slots(); ++s) {
        slots += there.slot(s).state != State::absent && there.slot(s).what == full(1, e) ? 1 : 0;
      }
      CHECK(slots <= 1);
    }
    pipe.done(p.arriving);
    pipe.finish(1);
  }
}

TEST_CASE("a cache is told once of each use, also of experts that wait in stream slots") {
  using S = Stack<EveryExpert, CountsSaved, FixedPrecision, stacks::LoadEverything, TopK>;
  CoreConfig<S> c;
  c.model = model(2, 4, 2, 2);
  c.allotment.pools = {{0, 2, part::bit(Precision::full), 0, 64}};
  c.allotment.stream_slots = 4;
  c.allotment.stream_slot_bytes = 64;
  const std::vector<float> all = {4, 3, 2, 1, 1, 2, 3, 4};
  for (std::size_t landed = 1; landed < 4; ++landed) {  // of four prefetches; one more has begun
    CAPTURE(landed);
    CountsSaved::told.assign(4, 0);
    CommandBuffer link(CommandBuffer::Progress::reported);
    OffloadPipeline<S, CommandBuffer> pipe(c, link);
    Seen seen;
    std::vector<Ticket> prefetches;
    const auto take = [&] {
      for (const Command& k : link.commands()) {
        if (k.kind != Command::Kind::copy) continue;
        if (k.copy.demand) {
          seen.demand_landed = k.copy.ticket;
        } else {
          prefetches.push_back(k.copy.ticket);
        }
      }
      link.clear();
      link.report(seen);
    };
    pipe.begin_step(StepOf(Phase::prefill, 2));
    const Plan first = pipe.plan(scores(0, all));
    take();
    pipe.look_ahead();
    pipe.done(first.arriving);
    pipe.finish(0);
    take();
    REQUIRE(prefetches.size() == 4);
    seen.prefetch_landed = prefetches[landed - 1];
    seen.prefetch_begun = prefetches[landed];
    link.report(seen);
    static_cast<void>(pipe.plan(scores(1, all)));
    CHECK(CountsSaved::told == std::vector<int>(4, 1));
  }
}

TEST_CASE("what is predicted for a stack without slots of its own is found in stream slots") {
  using S = Stack<EveryExpert, LoadOnDemand, FixedPrecision, stacks::LoadEverything, TopK>;
  CoreConfig<S> c;
  c.model = model(2, 4, 2, 2, 6400);
  c.allotment = stream_only(c.model, Budget(6400 * 4));
  VirtualClock link(c.model, {});
  OffloadPipeline<S, VirtualClock> pipe(c, link);
  const std::vector<float> all = {4, 3, 2, 1, 1, 2, 3, 4};
  for (int step = 0; step < 10; ++step) {
    pipe.begin_step(StepOf(Phase::prefill, 2));
    for (std::uint16_t l = 0; l < 2; ++l) {
      const Plan p = pipe.plan(scores(l, all));
      pipe.look_ahead();
      for (const Task& t : p.arriving) {
        pipe.wait(t);
        link.device(100'000);
        pipe.done(t);
      }
      link.sync();
      pipe.finish(l);
      link.device(100'000);
      link.sync();
    }
  }
  CHECK(pipe.counters().prefetch.issued == 40);
  CHECK(pipe.counters().prefetch.used == 40);
  CHECK(pipe.counters().prefetch.wasted_bytes == 0);
}
