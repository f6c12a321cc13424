// What docs/contracts.md says of wrong calls: a test case for each row.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ferry/any_pipeline.hpp"
#include "ferry/link/command_buffer.hpp"
#include "ferry/link/host_thread.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

constexpr Nanoseconds longest_time = std::numeric_limits<Nanoseconds>::max();
/// Layer 0, and layers that a model of 3 layers lacks, where layer 1 is the one under way.
constexpr std::uint16_t wrong_layers[] = {0, 3, 4, 0x8000, 0xffff};

/// 3 layers of 4 experts, top-2, at most 2 rows, in a few slots.
template <class S>
struct Misused {
  static CoreConfig<S> config_of() {
    CoreConfig<S> c;
    c.model = model(3, 4, 2, 2, 64, 32);
    S::set_up(c, Budget{6 * 64});
    return c;
  }

  explicit Misused(CoreConfig<S> with = config_of()) : config(std::move(with)) {}

  void begin(std::uint32_t rows = 1) { pipe.begin_step(StepOf(Phase::decode, rows)); }
  Plan plan(std::uint16_t layer, std::uint32_t rows = 1) { return pipe.plan(of(layer, rows)); }
  Scores of(std::uint16_t layer, std::uint32_t rows) {
    memory.clear();
    for (std::uint32_t r = 0; r < rows; ++r) memory.insert(memory.end(), {.4F, .3F, .2F, .1F});
    return scores(layer, memory);
  }
  /// How many slots are leased.
  [[nodiscard]] std::uint32_t leased() const {
    std::uint32_t n = 0;
    for (std::uint32_t s = 0; s < config.allotment.slots(); ++s) n += pipe.core().residency().is_leased(s) ? 1 : 0;
    return n;
  }

  CoreConfig<S> config;
  VirtualClock clock{config.model, {1'000'000'000, 0, false}};
  OffloadPipeline<S, VirtualClock> pipe{config, clock};
  std::vector<float> memory;
};
using Misuse = Misused<stacks::CrossLayerLru>;

}  // namespace

TEST_CASE("constructor: parts that fit together, times not below 0") {
  auto config = Misuse::config_of();
  VirtualClock clock(config.model, {1'000'000'000, 0, false});
  using Pipe = OffloadPipeline<stacks::CrossLayerLru, VirtualClock>;
  config.copy_ns[4] = -1;
  CHECK_THROWS_AS(Pipe(config, clock), ConfigError);
  config.copy_ns[4] = longest_time;
  CHECK_NOTHROW(Pipe(config, clock));
  config.allotment.stream_slots = 0;
  CHECK_THROWS_AS(Pipe(config, clock), ConfigError);
}

TEST_CASE("preload: to come ahead of the first step") {
  Misuse m;
  CHECK_NOTHROW(m.pipe.preload());
  CHECK_NOTHROW(m.pipe.preload());  // what is resident stays
  m.begin();
  CHECK_THROWS_AS(m.pipe.preload(), UsageError);
}

TEST_CASE("begin_step: 1 to max_rows rows, of prefill or decode") {
  Misuse m;
  const std::uint32_t sequences[3] = {};
  CHECK_THROWS_AS(m.pipe.begin_step({Phase::decode, {sequences, 0}}), UsageError);
  CHECK_THROWS_AS(m.pipe.begin_step({Phase::decode, {sequences, 3}}), UsageError);
  CHECK_THROWS_WITH_AS(m.pipe.begin_step({static_cast<Phase>(7), {sequences, 1}}),
                       "begin_step: a phase of 7, expected prefill or decode", UsageError);
  CHECK(m.pipe.counters().steps[0] + m.pipe.counters().steps[1] == 0);
}

TEST_CASE("begin_step: that no layer is under way") {
  Misuse m;
  for (std::uint64_t n = 0; n < 50; ++n) {  // an engine that never calls `abandon`
    m.begin();
    CHECK(m.pipe.counters().unfinished_steps == n);
    CHECK(m.leased() == 0);
    m.plan(0);
    CHECK(m.leased() == 2);
    m.clock.drain();
  }
  CHECK(m.pipe.counters().of(Phase::decode).hits >= 90);  // and still hits: no slot stays barred
}

TEST_CASE("plan: a step, its layers ascending, none under way") {
  Misuse m;
  CHECK_THROWS_AS(m.plan(0), UsageError);
  m.begin();
  CHECK_THROWS_AS(m.plan(3), UsageError);
  CHECK_THROWS_AS(m.plan(no_layer), UsageError);
  m.plan(1);
  CHECK_THROWS_AS(m.plan(2), UsageError);
  m.pipe.finish(1);
  CHECK_THROWS_AS(m.plan(1), UsageError);
  CHECK_NOTHROW(m.plan(2));
}

TEST_CASE("plan: both arrays [rows, experts], rows of the step ascending") {
  Misuse m;
  m.begin(2);
  CHECK_THROWS_AS(m.plan(0, 1), UsageError);
  Scores s = m.of(0, 2);
  s.weight.size = 7;
  CHECK_THROWS_AS(m.pipe.plan(s), UsageError);
  const std::uint32_t descending[] = {1, 0}, beyond[] = {0, 2};
  s = m.of(0, 2);
  s.rows = descending;
  CHECK_THROWS_AS(m.pipe.plan(s), UsageError);
  s.rows = beyond;
  CHECK_THROWS_AS(m.pipe.plan(s), UsageError);
}

TEST_CASE("plan: scores that are numbers") {
  Misuse m;
  m.begin();
  const float none = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  m.memory = {none, -infinite, none, infinite};
  const Plan p = m.pipe.plan(scores(0, m.memory));
  CHECK(p.routes[0].expert == 3);
  CHECK(p.routes[1].expert == 1);
}

TEST_CASE("plan of routes: [rows, top_k], experts of the layer or no_expert") {
  Misuse m;
  m.begin();
  std::vector<Route> routes(1, Route{0, 1.0F});
  CHECK_THROWS_AS(m.pipe.plan(0, routes), UsageError);
  routes = {{0, 1.0F}, {4, 1.0F}};
  CHECK_THROWS_AS(m.pipe.plan(0, routes), UsageError);
  routes[1] = {no_expert, 0.0F, 4};
  CHECK_THROWS_WITH_AS(m.pipe.plan(0, routes),
                       "plan, layer 0: a route instead of expert 4, expected less than 4, or no_expert", UsageError);
  routes[1] = {no_expert, 0.0F, 3};
  CHECK_NOTHROW(m.pipe.plan(0, routes));
}

TEST_CASE("plan of routes: a stack that can do without scores") {
  auto config = any_config(Misused<stacks::ImportanceDriven>::config_of());
  VirtualClock clock(config->settings().model, {1'000'000'000, 0, false});
  const auto pipe = config->start(clock);
  pipe->begin_step(StepOf(Phase::decode, 1));
  const std::vector<Route> routes(2, Route{0, 1.0F});
  CHECK_THROWS_AS(pipe->plan(0, routes), UsageError);
}

TEST_CASE("look_ahead: a layer under way") {
  Misuse m;
  CHECK_THROWS_AS(m.pipe.look_ahead(m.of(1, 1)), UsageError);
  m.begin();
  CHECK_THROWS_AS(m.pipe.look_ahead(m.of(1, 1)), UsageError);
  m.plan(0);
  CHECK_NOTHROW(m.pipe.look_ahead(m.of(1, 1)));
  m.pipe.finish(0);
  CHECK_THROWS_AS(m.pipe.look_ahead(m.of(1, 1)), UsageError);
}

TEST_CASE("look_ahead: a layer of the model, at most max_rows rows") {
  Misuse m;
  m.begin();
  m.plan(0);
  CHECK_THROWS_AS(m.pipe.look_ahead(m.of(3, 1)), UsageError);
  CHECK_THROWS_AS(m.pipe.look_ahead(m.of(1, 3)), UsageError);
  Scores s = m.of(1, 1);
  s.weight.size = 3;
  CHECK_THROWS_AS(m.pipe.look_ahead(s), UsageError);
}

TEST_CASE("wait: a copy that was submitted, a link that works") {
  Misuse m;
  m.begin();
  Task t = m.plan(0).arriving[0];
  CHECK_NOTHROW(m.pipe.wait(t));
  CHECK_NOTHROW(m.pipe.wait(t));
  t.ready = Ticket{1000};
  CHECK_THROWS_AS(m.pipe.wait(t), LinkError);
  t.ready = Ticket{1001};
  CHECK_THROWS_AS(m.pipe.wait(t), LinkError);
}

TEST_CASE("done: tasks of the layer under way") {
  Misuse m;
  CHECK_THROWS_AS(m.pipe.done(View<const Task>{}), UsageError);
  m.begin();
  const Task first = m.plan(0).arriving[0];
  m.pipe.finish(0);
  CHECK_THROWS_AS(m.pipe.done(first), UsageError);
  Task planned = m.plan(1).arriving[0];
  CHECK_THROWS_AS(m.pipe.done(first), UsageError);  // a task of an earlier layer
  const auto refused = [&](Task t, const char* what) { CHECK_THROWS_WITH_AS(m.pipe.done(t), what, UsageError); };
  Task wrong = planned;
  wrong.slot = 77;
  refused(wrong,
          "done, layer 1: a task of expert 0 of layer 1 in slot 77, expected those of the plan of the layer under way");
  wrong = planned;
  wrong.what.id.expert = 3;  // as if from an earlier step: its slot has another reader now
  CHECK_THROWS_AS(m.pipe.done(wrong), UsageError);
  CHECK(m.leased() == 2);
  m.pipe.done(planned);
  CHECK(m.leased() == 1);
}

TEST_CASE("done: each task once") {
  Misuse m;
  m.begin();
  const Plan p = m.plan(0);
  m.pipe.done(p.arriving[0]);
  m.pipe.done(p.arriving[0]);
  CHECK(m.leased() == 1);
}

TEST_CASE("done: tasks of arriving in order") {
  Misused<stacks::OnDemand> m;  // all of its slots are stream slots
  CoreConfig<stacks::OnDemand> config = m.config;
  config.allotment.stream_slots = 2;
  VirtualClock clock(config.model, {1'000'000'000, 0, false});
  OffloadPipeline<stacks::OnDemand, VirtualClock> pipe(config, clock);
  pipe.begin_step(StepOf(Phase::prefill, 2));
  m.memory = {1, 1, 0, 0, 0, 0, 1, 1};
  const Plan p = pipe.plan(scores(0, m.memory));
  REQUIRE(p.arriving.size == 4);
  REQUIRE(p.arriving[2].freed_by == 0);
  REQUIRE(p.arriving[3].freed_by == 1);
  pipe.done(p.arriving[1]);
  pipe.done(p.arriving[0]);
  CHECK_NOTHROW(pipe.wait(p.arriving[2]));
  CHECK_THROWS_AS(pipe.wait(p.arriving[3]), LinkError);
  CHECK_NOTHROW(pipe.finish(0));
}

TEST_CASE("finish: the layer under way, once") {
  Misuse m;
  for (const std::uint16_t layer : wrong_layers) CHECK_THROWS_AS(m.pipe.finish(layer), UsageError);
  m.begin();
  for (const std::uint16_t layer : wrong_layers) CHECK_THROWS_AS(m.pipe.finish(layer), UsageError);
  m.plan(1);
  for (const std::uint16_t layer : wrong_layers) CHECK_THROWS_AS(m.pipe.finish(layer), UsageError);
  m.pipe.finish(1);
  CHECK_THROWS_AS(m.pipe.finish(1), UsageError);
}

TEST_CASE("finish: times not below 0") {
  Misuse m;
  m.begin();
  m.plan(0);
  CHECK_THROWS_WITH_AS(m.pipe.finish(0, {1, 2, -3, 4}),
                       "finish, layer 0: times of 1, 2, -3 and 4 ns, expected none below 0", UsageError);
  CHECK_THROWS_AS(m.pipe.finish(0, {-1, 0, 0, 0}), UsageError);
  CHECK_THROWS_AS(m.pipe.finish(0, {0, std::numeric_limits<Nanoseconds>::min(), 0, 0}), UsageError);
  CHECK_THROWS_AS(m.pipe.finish(0, {0, 0, 0, -1}), UsageError);
  CHECK_NOTHROW(m.pipe.finish(0, {longest_time, longest_time, longest_time, longest_time}));
  m.plan(1);
  CHECK_NOTHROW(m.pipe.look_ahead(m.of(2, 1)));
}

TEST_CASE("abandon: nothing, at any point") {
  Misuse m;
  m.pipe.abandon();
  m.begin();
  m.pipe.abandon();
  CHECK_THROWS_AS(m.plan(0), UsageError);
  m.begin();
  m.plan(0);
  m.pipe.abandon();
  m.pipe.abandon();
  CHECK(m.leased() == 0);
  CHECK(m.pipe.counters().unfinished_steps == 0);
}

TEST_CASE("end_sequence: any number") {
  Misused<stacks::MoeInfinity> m;
  m.pipe.end_sequence(0xffffffffU);
  m.begin();
  m.plan(0);
  m.pipe.end_sequence(0);
  m.pipe.end_sequence(0);
  m.pipe.finish(0);
  CHECK_NOTHROW(m.plan(1));
  Misused<stacks::Hobbit> in_a_step;  // whose cache counts by sequence
  in_a_step.begin();
  in_a_step.plan(0);
  in_a_step.pipe.finish(0);
  in_a_step.pipe.end_sequence(0);
  in_a_step.plan(1);
  in_a_step.pipe.finish(1);
  const char* broken = in_a_step.pipe.core().cache(0).check();
  CHECK_MESSAGE(broken == nullptr, broken);
}

TEST_CASE("prediction_accuracy, layer_ahead: any layer and distance") {
  Misuse m;
  for (const std::uint16_t distance : wrong_layers) {
    for (const std::uint16_t layer : wrong_layers) CHECK(m.pipe.prediction_accuracy(distance, layer).needed == 0);
  }
  CHECK(m.pipe.layer_ahead(RowSource::gate_input, 0xffff) == no_layer);
}

namespace {
/// Calls the pipeline back while it submits.
struct CallsBack {
  void submit(const Copy&) noexcept { call(); }
  void drop(Ticket) noexcept {}
  static Seen seen() noexcept { return {}; }
  void fence(Fence) noexcept {}
  void wait(Ticket) {}
  std::function<void()> call = [] {};
};
}  // namespace

TEST_CASE("any two: to come one at a time, from whichever thread") {
  const auto config = Misuse::config_of();
  CallsBack link;
  OffloadPipeline<stacks::CrossLayerLru, CallsBack> pipe(config, link);
  const std::vector<float> some{.4F, .3F, .2F, .1F};
  int refused = 0;
  const auto each = [&](auto&& call) {
    try {
      call();
    } catch (const UsageError& e) {
      refused += std::string(e.what()).find(": another call of this pipeline is under way, expected one at a time") !=
                         std::string::npos
                     ? 1
                     : 0;
    }
  };
  link.call = [&] {
    std::thread([&] {
      each([&] { pipe.begin_step(StepOf(Phase::decode, 1)); });
      each([&] { pipe.plan(scores(1, some)); });
      each([&] { pipe.plan(1, std::vector<Route>(2)); });
      each([&] { pipe.look_ahead(scores(1, some)); });
      each([&] { pipe.done(View<const Task>{}); });
      each([&] { pipe.finish(0); });
      each([&] { pipe.preload(); });
    }).join();
    link.call = [] {};
  };
  pipe.begin_step(StepOf(Phase::decode, 1));
  pipe.plan(scores(0, some));
  CHECK(refused == 7);
  std::thread([&] { pipe.finish(0); }).join();  // another thread, one at a time
  CHECK_NOTHROW(pipe.plan(scores(1, some)));
  link.call = [&] { each([&] { pipe.finish(1); }); };  // from inside
  CHECK_NOTHROW(pipe.look_ahead(scores(2, some)));
  CHECK(refused > 7);
}

namespace {
/// Takes, loads and evicts more than there is.
struct TooMany {
  static bool further(const PrefetchWindow& /*window*/) noexcept { return true; }
  static std::uint32_t take(const PrefetchWindow& /*window*/, View<const Request> /*absent*/) noexcept { return ~0U; }
  static void order(Phase /*phase*/, bool /*demand*/, View<Request> /*requests*/) noexcept {}
  static std::uint32_t split(Phase /*phase*/, View<const Request> /*misses*/) noexcept { return ~0U; }
};
struct NoVictim : Lru {
  std::uint32_t which = 0;
  std::uint32_t victim(Variant /*incoming*/, Barred /*barred*/) const noexcept { return which; }
};

/// Runs some steps; returns how many experts were asked for.
template <class S>
std::uint64_t run_steps(const CoreConfig<S>& config) {
  VirtualClock clock(config.model, {1'000'000'000, 0, false});
  OffloadPipeline<S, VirtualClock> pipe(config, clock);
  for (std::uint16_t step = 0; step < 8; ++step) {
    pipe.begin_step(StepOf(Phase::decode, 1));
    for (std::uint16_t l = 0; l < config.model.layers; ++l) {
      const std::vector<float> real =
          favour(4, {static_cast<std::uint16_t>(step % 4), static_cast<std::uint16_t>((step + 1) % 4)});
      const Plan p = pipe.plan(scores(l, real));
      pipe.look_ahead(RowSource::gate_input, [&](std::uint16_t next, std::uint16_t) { return scores(next, real); });
      for (const Task& t : p.arriving) {
        pipe.wait(t);
        pipe.done(t);
      }
      pipe.finish(l);
    }
  }
  return pipe.counters().of(Phase::decode).requests;
}
}  // namespace

TEST_CASE("policy: take, split of no more than there is") {
  using S = Stack<CrossLayerGate, Lru, FixedPrecision, TooMany, TopK>;
  CoreConfig<S> config;
  config.model = model(3, 4, 2, 2);
  config.allotment = one_pool(config.model, 6 * 64);
  CHECK(run_steps(config) == 48);
}

namespace {
/// Asks in the second pass of `reserve` for what it did not measure in the first, as one array or several.
struct Growing : Lru {
  std::uint32_t more = 0;
  bool twice = false;
  void reserve(Carver& carve, const PoolShape& pool) {
    Lru::reserve(carve, pool);
    if (carve.measuring()) return;
    for (std::uint32_t i = 0; i < (twice ? more : 1); ++i) carve(own, twice ? 64 : std::size_t{64} * more);
  }
  Array<std::uint64_t> own;
};
struct Deep : CrossLayerGate {
  int depth = 1;
};
struct Nothing : FixedPrecision {
  std::uint8_t names = 1;
  FERRY_HD std::uint8_t precisions() const noexcept { return names; }
};
}  // namespace

TEST_CASE("policy: the same arrays in both passes of reserve") {
  for (const bool twice : {false, true}) {
    using S = Stack<NoPrediction, Growing, FixedPrecision, stacks::LoadEverything, TopK>;
    CoreConfig<S> config;
    config.model = model(3, 4, 2, 2);
    config.allotment = one_pool(config.model, 6 * 64);
    config.cache.twice = twice;
    CHECK_NOTHROW(OwnedCore<S>{config});
    for (const std::uint32_t more : {4U, 1U << 20U}) {
      config.cache.more = more;
      CHECK_THROWS_WITH_AS(OwnedCore<S>{config}, doctest::Contains("`reserve` must ask for the same in both passes"),
                           ConfigError);
    }
  }
}

TEST_CASE("predictor: a depth of at most the model's layers, or 4") {
  using S = Stack<Deep, Lru, FixedPrecision, stacks::LoadEverything, TopK>;
  CoreConfig<S> config;
  config.model = model(6, 4, 2, 2);
  config.allotment = one_pool(config.model, 6 * 64);
  for (const int depth : {1, 4, 6}) {
    config.predictor.depth = depth;
    CHECK_NOTHROW(OwnedCore<S>{config});
  }
  for (const int depth : {7, -1, 65535}) {
    config.predictor.depth = depth;
    CHECK_THROWS_WITH_AS(OwnedCore<S>{config}, doctest::Contains("expected at most 6"), ConfigError);
  }
}

TEST_CASE("selector: precisions() that names one") {
  using S = Stack<NoPrediction, Lru, Nothing, stacks::LoadEverything, TopK>;
  CoreConfig<S> config;
  config.model = model(3, 4, 2, 2);
  config.allotment = one_pool(config.model, 6 * 64);
  for (const std::uint8_t names : {std::uint8_t{0}, std::uint8_t{1}}) {
    config.precision.names = names;
    CHECK_THROWS_WITH_AS(OwnedCore<S>{config}, doctest::Contains("names no precision"), ConfigError);
  }
}

TEST_CASE("policy: parameters in their ranges") {
  auto config = Misused<stacks::Ferry>::config_of();
  config.cache.half_life = 0;
  CHECK_THROWS_AS(Misused<stacks::Ferry>{config}, ConfigError);
}

#ifdef NDEBUG
TEST_CASE("policy: a victim that is not barred") {
  using S = Stack<CrossLayerGate, NoVictim, FixedPrecision, Schedule<NoLimit, ArrivalOrder, DeviceOnly>, TopK>;
  CoreConfig<S> config;
  config.model = model(3, 4, 2, 2);
  config.allotment = one_pool(config.model, 6 * 64);
  for (const std::uint32_t which : {0U, 3U, 4U, 1000U, no_slot}) {
    config.cache.which = which;
    CHECK(run_steps(config) == 48);
  }
}
#endif

TEST_CASE("VirtualClock: 1 to 10^15 bytes a second, copies below 2^42 ns") {
  const ModelShape m = model(1, 4, 1);
  CHECK_THROWS_AS(VirtualClock(m, {0, 0, false}), ConfigError);
  CHECK_THROWS_AS(VirtualClock(m, {1'000'000'000'000'001, 0, false}), ConfigError);
  CHECK_THROWS_AS(VirtualClock(m, {1000, -1, false}), ConfigError);
  CHECK_THROWS_AS(VirtualClock(m, {1000, longest_time, false}), ConfigError);
  CHECK_NOTHROW(VirtualClock(m, {1, 0, false}));
}

TEST_CASE("VirtualClock: work of 0 to 2^42 ns") {
  VirtualClock clock(model(1, 4, 1), {1000, 0, false});
  CHECK_THROWS_AS(clock.device(-1), UsageError);
  CHECK_THROWS_AS(clock.device(longest_time), UsageError);
  CHECK_THROWS_AS(clock.host({5, longest_time}, full(0, 0)), UsageError);
}

TEST_CASE("HostThread: latency and linger of 0 to an hour") {
  const ModelShape m = model(1, 4, 1);
  SlotMemory memory(everything(m), [](Variant) { return View<const std::byte>{}; });
  CHECK_THROWS_AS(HostThread(memory, {.latency_ns = -1}), ConfigError);
  CHECK_THROWS_AS(HostThread(memory, {.linger_ns = longest_time}), ConfigError);
}

TEST_CASE("HostThread: a source that does not throw") {
  const ModelShape m = model(1, 4, 1);
  SlotMemory memory(everything(m), [](Variant) -> View<const std::byte> { throw std::runtime_error("gone"); });
  HostThread link(memory, HostThread::Options{});
  link.submit({Ticket{2}, full(0, 0), 0, Fence::none, true});
  CHECK_THROWS_WITH_AS(link.wait(Ticket{2}), "a copy failed: gone", LinkError);
  CHECK_THROWS_AS(link.drain(), LinkError);
}

TEST_CASE("CommandBuffer: reports that do not go back") {
  CommandBuffer link(CommandBuffer::Progress::reported);
  CHECK_THROWS_WITH_AS(link.report({Ticket{8}, Ticket{7}, Ticket{5}, 0}),
                       "report: a copy that was not submitted, expected at most demand copy 0 and prefetch 0",
                       UsageError);
  for (const std::uint64_t ticket : {6U, 8U, 5U, 7U, 9U})
    link.submit({Ticket{ticket}, full(0, 0), 0, Fence::none, ticket % 2 == 0});
  link.report({Ticket{8}, Ticket{7}, Ticket{5}, 0});
  link.report({Ticket{6}, Ticket{9}, Ticket{3}, 0});
  CHECK(link.seen().demand_landed == Ticket{8});
  CHECK(link.seen().prefetch_begun == Ticket{9});
  CHECK(link.seen().prefetch_landed == Ticket{5});
}

TEST_CASE("Core: calls in their order, arrays that fit") {
  const auto config = Misuse::config_of();
  OwnedCore<stacks::CrossLayerLru> core(config);
  core->begin_step(StepOf(Phase::decode, 1));
  const std::vector<float> some{.4F, .3F, .2F, .1F};
  core->plan(scores(0, some), Seen{});
  core->finish(0xffff, {10, 10, 10, 10}, Seen{Ticket::none, Ticket::none, Ticket::none, -5});
  core->plan(scores(1, some), Seen{});
  core->finish(3, {-10, 10, 10, 10}, Seen{});
  CHECK(core->counters().of(Phase::decode).requests == 4);
}
