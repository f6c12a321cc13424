#include "ferry/pipeline.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <new>

#include "ferry/link/virtual_clock.hpp"
#include "ferry/stacks.hpp"
#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {
std::uint64_t allocations = 0;
}

// Sanitizers bring their own allocator, and would see ours as a mismatch.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Counted for the whole test program; only the difference across the hot path matters.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

#endif

namespace {

/// A link without memory or time: everything lands at once.
struct Instant {
  void submit(const Copy& c) noexcept {
    (c.demand ? seen_.demand_landed : seen_.prefetch_landed) = c.ticket;
    if (!c.demand) seen_.prefetch_begun = c.ticket;
  }
  void drop(Ticket) noexcept {}
  Seen seen() noexcept { return seen_; }
  void fence(Fence) noexcept {}
  void wait(Ticket) {}
  Seen seen_;
};
static_assert(Link<Instant>);

template <class StackT>
std::uint64_t allocations_of_steps() {
  CoreConfig<StackT> c;
  c.model = model(4, 32, 4, 8);
  c.allotment =
      part::caches<typename StackT::cache>() ? pool_per_layer(c.model, 40 * 64) : stream_only(c.model, 8 * 64);
  Instant link;
  OffloadPipeline<StackT, Instant> pipe(c, link);
  Random random(5);
  std::vector<float> gate(8 * 32);
  std::uint32_t sequences[8] = {};
  const std::uint64_t before = allocations;
  for (int step = 0; step < 50; ++step) {
    const std::uint32_t rows = random.between(1, 8);
    pipe.begin_step({step % 5 == 0 ? Phase::prefill : Phase::decode, {sequences, rows}});
    for (std::uint16_t l = 0; l < 4; ++l) {
      for (float& x : gate) x = random.unit();
      const View<const float> v{gate.data(), rows * 32};
      const Plan p = pipe.plan({l, v, v});
      pipe.look_ahead({static_cast<std::uint16_t>((l + 1) % 4), v, v});
      pipe.done(p.resident);
      for (const Task& t : p.arriving) {
        pipe.wait(t);
        pipe.done(t);
      }
      pipe.finish(l);
    }
  }
  return allocations - before;
}

}  // namespace

TEST_CASE("no allocation after construction") {
  CHECK(allocations_of_steps<stacks::OnDemand>() == 0);
  CHECK(allocations_of_steps<stacks::LruCache>() == 0);
  CHECK(allocations_of_steps<stacks::CrossLayerLru>() == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(allocations > 0);  // the counter counts
#endif
}

TEST_CASE("the hot path is noexcept") {
  using Pipe = OffloadPipeline<stacks::CrossLayerLru, Instant>;
  static_assert(noexcept(std::declval<Pipe&>().plan(Scores{})));
  static_assert(noexcept(std::declval<Pipe&>().look_ahead(Scores{})));
  static_assert(noexcept(std::declval<Pipe&>().done(View<const Task>{})));
  static_assert(noexcept(std::declval<Pipe&>().finish(0)));
}

TEST_CASE("the six outcomes sum to what the gate asked for, under random load") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scenario<LossyStack> s(seed);
    VirtualClock clock(s.config.model, {1'000'000'000, 0, false});
    OffloadPipeline<LossyStack, VirtualClock> pipe(s.config, clock);
    drive(
        s, pipe, 40, nullptr, [&](const Task&) { clock.device(50); },
        [&](std::uint32_t ns) {
          clock.device(ns);
          clock.sync();
        });
    std::uint64_t bytes = 0;
    for (const Phase p : {Phase::prefill, Phase::decode}) {
      const Outcomes& o = pipe.counters().of(p);
      CHECK(o.hits + o.late_hits + o.misses + o.substituted + o.skipped + o.host_computed == o.requests);
      bytes += o.bytes;
    }
    const Counters& c = pipe.counters();
    bytes += c.preload_bytes;
    CHECK(bytes == c.bytes_by_precision[2] + c.bytes_by_precision[4]);
    CHECK(c.prefetch.used <= c.prefetch.issued);
    CHECK(c.prefetch.accuracy.foretold <= c.prefetch.accuracy.needed);
  }
}

TEST_CASE("a step without rows, or with too many, is refused") {
  CoreConfig<stacks::LruCache> c;
  c.model = model(1, 4, 1, 2);
  c.allotment = everything(c.model);
  Instant link;
  OffloadPipeline<stacks::LruCache, Instant> pipe(c, link);
  const std::uint32_t sequences[3] = {};
  CHECK_THROWS_WITH_AS(pipe.begin_step({Phase::decode, {sequences, 3}}),
                       "a step has 3 rows, expected 1 to 2 (max_rows)", ConfigError);
  CHECK_THROWS_AS(pipe.begin_step({Phase::decode, {sequences, 0}}), ConfigError);
  CHECK_NOTHROW(pipe.begin_step({Phase::decode, {sequences, 2}}));
}
