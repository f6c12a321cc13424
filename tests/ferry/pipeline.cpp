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

/// Makes every call of an engine in both phases, with a sixth of the experts' bytes on the device, and checks that none
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
  StackT::set_up(c, c.model.all_bytes() / 6);  // INT4 does not fit either
  Instant link;
  Pipe pipe(c, link);
  if constexpr (traits_of<StackT>().preloads) pipe.preload();
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
      const Plan p = pipe.plan({l, v, v});
      pipe.look_ahead(Pipe::look_ahead_rows(phase), [&](std::uint16_t next, std::uint16_t) {
        return Scores{next, v, v};
      });
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
  if constexpr (Pipe::traits().predicts) CHECK(n.prefetch.issued > 0);
}

template <class... S>
struct List {};
using NamedStacks =
    List<stacks::OnDemand, stacks::LayerStream, stacks::LruCache, stacks::LruInt4, stacks::LlamaCache,
         stacks::CrossLayerLru, stacks::MixtralOffloading, stacks::MoeInfinity, stacks::ActivationPathStack,
         stacks::ActivationPathFull, stacks::StaticHost, stacks::StaticHostInt4, stacks::HybriMoe, stacks::FatePrefetch,
         stacks::FateCache, stacks::Fate, stacks::HobbitDynamic, stacks::HobbitPrefetch, stacks::Hobbit,
         stacks::HobbitCooperative, stacks::ImportanceEviction, stacks::ImportanceRouter, stacks::ImportancePrefetch,
         stacks::ImportanceDriven, stacks::ImportanceBalanced, stacks::Ferry, stacks::FerryInt4, stacks::FerryLossy,
         stacks::FerryDevice>;

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
  // Allocations are not counted here, and the invariant tests run the stacks.
  check_allocations(List<stacks::OnDemand, stacks::CrossLayerLru>{});
#else
  check_allocations(NamedStacks{});
  CHECK(allocations > 0);  // the counter counts
#endif
}

TEST_CASE("the core's hot path is noexcept") {
  using C = Core<stacks::CrossLayerLru>;
  static_assert(noexcept(std::declval<C&>().plan(Scores{}, Seen{})));
  static_assert(noexcept(std::declval<C&>().look_ahead(Scores{}, Seen{})));
  static_assert(noexcept(std::declval<C&>().done(View<const Task>{})));
  static_assert(noexcept(std::declval<C&>().finish(0, Times{}, Seen{})));
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

namespace {

using Layers = std::vector<std::uint16_t>;

/// The layers for which one look-ahead asks for rows, or names experts without rows, after each layer of a step.
template <class StackT>
std::vector<Layers> asked(Phase phase, RowSource source, std::uint16_t depth) {
  CoreConfig<StackT> c;
  c.model = model(4, 8, 2, 1, 64, 16);
  if constexpr (requires { c.predictor.depth; }) c.predictor.depth = depth;
  StackT::set_up(c, c.model.all_bytes() / 2);
  Instant link;
  OffloadPipeline<StackT, Instant> pipe(c, link);
  const std::vector<float> s = favour(8, {0, 1});
  std::vector<Layers> all;
  for (int step = 0; step < 2; ++step) {  // in the second step what is predicted is resident
    all.clear();
    pipe.begin_step(StepOf(phase, 1));
    for (std::uint16_t l = 0; l < 4; ++l) {
      pipe.plan(scores(l, s));
      Layers& layers = all.emplace_back();
      const std::uint16_t rows = pipe.rows_ahead(source);
      pipe.look_ahead(source, [&](std::uint16_t layer, std::uint16_t distance) {
        CHECK(layer == l + distance);
        layers.push_back(layer);
        return scores(layer, s);
      });
      CHECK(rows >= layers.size());  // the limit may have enough before
      pipe.finish(l, {10, 10, 10, 0});
    }
  }
  return all;
}

}  // namespace

TEST_CASE("the look-ahead loop: layers within the depth and the step, from the rows that the predictor reads") {
  const auto decode = Phase::decode;
  CHECK(asked<stacks::CrossLayerLru>(decode, RowSource::gate_input, 1) == std::vector<Layers>{{1}, {2}, {3}, {}});
  CHECK(asked<stacks::CrossLayerLru>(decode, RowSource::partial_hidden, 1) == std::vector<Layers>{{}, {}, {}, {}});
  CHECK(asked<stacks::ImportancePrefetch>(decode, RowSource::partial_hidden, 1) ==
        std::vector<Layers>{{1}, {2}, {3}, {}});
  CHECK(asked<stacks::LruCache>(decode, RowSource::gate_input, 1) == std::vector<Layers>{{}, {}, {}, {}});
  // HOBBIT stops at the first layer that lacks what is predicted. Here none does, so it goes on to its depth.
  CHECK(asked<stacks::HobbitPrefetch>(decode, RowSource::gate_input, 3) ==
        std::vector<Layers>{{1, 2, 3}, {2, 3}, {3}, {}});
  CHECK(asked<stacks::ActivationPathStack>(decode, RowSource::gate_input, 1) == std::vector<Layers>{{}, {}, {}, {}});
}

TEST_CASE("behind the last layer come the next step's, for what reads no rows") {
  CoreConfig<stacks::LayerStream> c;
  c.model = model(3, 4, 1, 1);
  stacks::LayerStream::set_up(c, c.model.all_bytes() * 2 / 3);
  Instant link;
  OffloadPipeline<stacks::LayerStream, Instant> pipe(c, link);
  pipe.begin_step(StepOf(Phase::decode, 1));
  const std::vector<float> s = favour(4, {0});
  for (std::uint16_t l = 0; l < 3; ++l) {
    pipe.plan(scores(l, s));
    if (l == 2) CHECK(pipe.core().layer_ahead(RowSource::none, 1) == 0);
    pipe.look_ahead();
    pipe.finish(l);
  }
  CHECK(pipe.counters().prefetch.layers_not_asked == 0);
}

TEST_CASE("a stack that predicts and is never asked to says so") {
  CoreConfig<stacks::CrossLayerLru> c;
  c.model = model(3, 4, 1, 1);
  c.allotment = everything(c.model);
  Instant link;
  OffloadPipeline<stacks::CrossLayerLru, Instant> pipe(c, link);
  const std::vector<float> s = favour(4, {0});
  for (const bool asks : {false, true}) {
    pipe.begin_step(StepOf(Phase::decode, 1));
    for (std::uint16_t l = 0; l < 3; ++l) {
      pipe.plan(scores(l, s));
      if (asks)
        pipe.look_ahead(RowSource::gate_input, [&](std::uint16_t layer, std::uint16_t) { return scores(layer, s); });
      pipe.finish(l);
    }
    CHECK(pipe.counters().prefetch.layers_not_asked == 2);  // the last layer has none behind it
  }
}

TEST_CASE("a layer with fewer rows than the step: requests, predictions and paths are those of its rows") {
  CoreConfig<stacks::CrossLayerLru> c;
  c.model = model(2, 4, 1, 3);
  c.allotment = everything(c.model);
  Instant link;
  OffloadPipeline<stacks::CrossLayerLru, Instant> pipe(c, link);
  const std::vector<float> gate = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};  // rows want 0, 1, 2
  pipe.begin_step(StepOf(Phase::decode, 3));
  pipe.plan(scores(0, gate));
  pipe.look_ahead(RowSource::gate_input, [&](std::uint16_t layer, std::uint16_t) { return scores(layer, gate); });
  pipe.finish(0);
  const std::uint32_t last[] = {2};
  Scores s{1, {gate.data() + 8, 4}, {gate.data() + 8, 4}, last};
  const Plan p = pipe.plan(s);
  CHECK(p.routes.size == 1);
  CHECK(p.routes[0].expert == 2);
  pipe.finish(1);
  const Accuracy& a = pipe.counters().prefetch.accuracy;
  CHECK(a.needed == 1);
  CHECK(a.predicted == 1);
  CHECK(a.rows == 1);
  CHECK(a.rows_top1 == 1);  // row 2 of the prediction, not its first
  CHECK(pipe.counters().of(Phase::decode).requests == 4);
}

TEST_CASE("with as many stream slots as a layer can ask for, no task waits for another") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    CoreConfig<stacks::LruCache> c;
    c.model = model(3, 16, 2, 6);
    const std::uint32_t slots = unwaited_stream_slots(c.model);
    CHECK(slots == 12);
    for (const bool enough : {true, false}) {
      stacks::LruCache::set_up(c, {std::uint64_t{64} * (slots + 5), enough ? slots : 2});
      Instant link;
      OffloadPipeline<stacks::LruCache, Instant> pipe(c, link);
      bool waits = false;
      for (int step = 0; step < 20; ++step) {
        pipe.begin_step(StepOf(Phase::decode, 6));
        for (std::uint16_t l = 0; l < 3; ++l) {
          const auto s = random.scores(6 * 16, false);
          for (const Task& t : pipe.plan(scores(l, s)).arriving) waits = waits || t.freed_by != no_task;
          pipe.finish(l);
        }
      }
      CHECK(waits == !enough);
    }
  }
  CHECK_THROWS_WITH_AS(one_pool(model(1, 4, 1), {200, 1}), "a budget has 1 stream slots, expected at least 2",
                       ConfigError);
}
