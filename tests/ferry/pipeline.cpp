#include "ferry/pipeline.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "ferry/link/virtual_clock.hpp"
#include "ferry/stacks.hpp"
#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {
std::uint64_t allocations = 0;
}

// Sanitizers bring their own allocator, and would see ours as a mismatch.
#ifndef FERRY_SANITIZED
// Counted for the whole test program; only the difference across the hot path matters.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t align) {
  ++allocations;
  const auto a = static_cast<std::size_t>(align);
  if (void* p = std::aligned_alloc(a, (bytes + a) / a * a)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
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

/// Every call that an engine makes, in both phases, with a quarter of the experts on the device. None of them
/// allocates.
template <class StackT>
void check_allocations() {
  using Pipe = OffloadPipeline<StackT, Instant>;
  CoreConfig<StackT> c;
  c.model = model(6, 32, 4, 8);
  c.model.expert_bytes = {ExpertBytes{0, 64, 128, 256, 512}};
  c.transient_prefill_rows = 6;
  c.top_score_alpha = 0.3F;
  for (std::uint32_t p = 0; p < precision_count; ++p) c.copy_ns[p] = 50 * p;
  StackT::set_up(c, c.model.all_bytes() / 4);
  Instant link;
  Pipe pipe(c, link);
  if constexpr (stacks::preloads<StackT>()) pipe.preload();
  Random random(5);
  std::vector<float> gate(8 * 32);
  const std::uint32_t batch[] = {0, 1, 2, 3, 4, 5, 6, 7}, prompt[8] = {};
  const std::uint64_t before = allocations;
  for (std::uint32_t step = 0; step < 64; ++step) {
    const Phase phase = step % 5 == 0 ? Phase::prefill : Phase::decode;
    const std::uint32_t rows = step % 8 + 1;
    pipe.begin_step({phase, {phase == Phase::prefill ? prompt : batch, rows}});
    for (std::uint16_t l = 0; l < 6; ++l) {
      for (float& x : gate) x = random.unit();
      const View<const float> v{gate.data(), rows * 32};
      const View<const float> ahead = Pipe::look_ahead_rows(phase) == RowSource::none ? View<const float>{} : v;
      const Plan p = pipe.plan({l, v, v});
      for (std::uint32_t d = 1; d <= pipe.look_ahead_depth(); ++d) {
        const auto next = static_cast<std::uint16_t>((l + d) % 6);
        if (pipe.wants_look_ahead(next)) pipe.look_ahead({next, ahead, ahead});
      }
      if (step % 7 == 3 && l == 2) {
        pipe.abandon();
        break;
      }
      pipe.done(p.resident);
      for (const Task& t : p.arriving) {
        pipe.wait(t);
        pipe.done(t);
      }
      pipe.finish(l, {2500, 500, 500, 2000});
    }
    if (step % 16 == 15) {
      for (const std::uint32_t s : batch) pipe.end_sequence(s);
    }
  }
  const std::uint64_t made = allocations - before;
  const std::string stack = typeid(StackT).name();
  CAPTURE(stack);
  CHECK(made == 0);
  const Counters& n = pipe.counters();
  for (const Phase phase : {Phase::prefill, Phase::decode}) CHECK(n.of(phase).hits < n.of(phase).requests);
  if constexpr (Pipe::predicts) CHECK(n.prefetch.issued > 0);
}

template <class... S>
struct List {};
using NamedStacks =
    List<stacks::OnDemand, stacks::LayerStream, stacks::LruCache, stacks::CrossLayerLru, stacks::MixtralOffloading,
         stacks::MoeInfinity, stacks::ActivationPathStack, stacks::StaticHost, stacks::HybriMoe, stacks::FatePrefetch,
         stacks::FateCache, stacks::Fate, stacks::HobbitDynamic, stacks::HobbitPrefetch, stacks::Hobbit,
         stacks::HobbitCooperative, stacks::ImportanceEviction, stacks::ImportanceRouter, stacks::ImportancePrefetch,
         stacks::ImportanceDriven>;

template <class... S>
void check_allocations(List<S...>) {
  (check_allocations<S>(), ...);
}

template <class... T>
constexpr bool none_virtual = !(std::is_polymorphic_v<T> || ...);
template <class S>
constexpr bool calls_directly = none_virtual<Core<S>, typename S::predictor, typename S::cache, typename S::precision,
                                             typename S::scheduler, typename S::router>;
template <class... S>
constexpr bool all_call_directly(List<S...>) {
  return (calls_directly<S> && ...);
}
static_assert(all_call_directly(NamedStacks{}));

// Nor can any other policy: what has a virtual function is none.
struct VirtualLru : Lru {
  virtual void f() {}
};
static_assert(std::is_polymorphic_v<VirtualLru> && !CachePolicy<VirtualLru>);

}  // namespace

TEST_CASE("no stack allocates after construction") {
#ifdef FERRY_SANITIZED
  // Nothing is counted here, and the invariant tests run the stacks.
  check_allocations(List<stacks::OnDemand, stacks::CrossLayerLru>{});
#else
  check_allocations(NamedStacks{});
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
    CHECK(c.prefetch.accuracy.predicted <= c.prefetch.accuracy.needed);
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
