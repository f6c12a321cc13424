// A pipeline without its types does, call for call, what the template does.
#include "ferry/any_pipeline.hpp"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "ferry/link/virtual_clock.hpp"
#include "ferry/stacks.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// Carries copies out as VirtualClock does, and writes down what it is told.
class Logged {
 public:
  explicit Logged(const ModelShape& model) : clock_(model, {100'000'000, 0, false}) {}

  void submit(const Copy& c) noexcept {
    log.emplace_back(static_cast<std::uint64_t>(c.ticket), c.slot, static_cast<std::uint64_t>(c.after));
    clock_.submit(c);
  }
  void drop(Ticket t) noexcept {
    log.emplace_back(static_cast<std::uint64_t>(t), no_slot, 0);
    clock_.drop(t);
  }
  Seen seen() noexcept { return clock_.seen(); }
  void fence(Fence f) noexcept { clock_.fence(f); }
  void wait(Ticket t) { clock_.wait(t); }
  void pass(Nanoseconds ns) {
    clock_.device(ns);
    clock_.sync();
  }

  std::vector<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>> log;

 private:
  VirtualClock clock_;
};

/// Random steps, all calls of an engine among them; `pipe` is of either kind.
template <class Pipe>
void drive(Pipe& pipe, Logged& link, const ModelShape& m, bool with_routes) {
  Random random(3);
  pipe.preload();
  for (int step = 0; step < 60; ++step) {
    const Phase phase = random.chance(25) ? Phase::prefill : Phase::decode;
    const std::uint32_t rows = random.between(1, m.max_rows);
    pipe.begin_step(StepOf(phase, rows));
    for (std::uint16_t l = 0; l < m.layers; ++l) {
      const auto gate = random.scores(std::size_t{rows} * m.experts, false);
      std::vector<Route> routes;
      for (std::uint32_t row = 0; row < rows; ++row) {
        for (std::uint16_t i = 0; i < m.top_k; ++i) {
          routes.push_back({static_cast<std::uint16_t>((random.below(m.experts - m.top_k)) + i), 0.5F});
        }
      }
      Plan plan;
      if constexpr (requires { typename Pipe::Stack; }) {
        if constexpr (!Pipe::traits().router_needs_scores && !Pipe::traits().cache_needs_scores) {
          plan = with_routes ? pipe.plan(l, routes) : pipe.plan(scores(l, gate));
        } else {
          plan = pipe.plan(scores(l, gate));
        }
      } else {
        plan = with_routes ? pipe.plan(l, routes) : pipe.plan(scores(l, gate));
      }
      link.pass(random.below(100));
      for (const RowSource source : {RowSource::none, RowSource::gate_input, RowSource::partial_hidden}) {
        pipe.look_ahead(source, [&](std::uint16_t layer, std::uint16_t) { return scores(layer, gate); });
      }
      if (random.chance(3)) {
        pipe.abandon();
        break;
      }
      pipe.done(plan.resident);
      for (const Task& t : plan.arriving) {
        pipe.wait(t);
        link.pass(20);
        pipe.done(t);
      }
      pipe.finish(l, {100, 10, 20, 50});
    }
    if (random.chance(10)) pipe.end_sequence(0);
  }
}

template <class StackT>
void check_same(bool with_routes) {
  CoreConfig<StackT> c;
  c.model = model(4, 12, 2, 4, 256, 64);
  c.model.expert_bytes = {ExpertBytes{0, 64, 128, 192, 256}};
  for (Nanoseconds& ns : c.copy_ns) ns = 100;
  StackT::set_up(c, c.model.all_bytes() / 3);
  Logged link(c.model), any_link(c.model);
  OffloadPipeline<StackT, Logged> pipe(c, link);
  const auto config = any_config(c);
  const auto any = config->start(any_link);
  drive(pipe, link, c.model, with_routes);
  drive(*any, any_link, c.model, with_routes);
  CHECK(link.log.size() > 100);
  CHECK(link.log == any_link.log);
  const Counters &a = pipe.counters(), &b = any->counters();
  for (const Phase p : {Phase::prefill, Phase::decode}) {
    CHECK(a.of(p).hits == b.of(p).hits);
    CHECK(a.of(p).misses == b.of(p).misses);
    CHECK(a.of(p).bytes == b.of(p).bytes);
  }
  CHECK(a.prefetch.issued == b.prefetch.issued);
  CHECK(pipe.look_ahead_depth() == any->look_ahead_depth());
  CHECK(pipe.look_ahead_depth() == config->look_ahead_depth());
  CHECK(pipe.prediction_accuracy(1, 1).predicted == any->prediction_accuracy(1, 1).predicted);
  CHECK(any->traits().predicts == traits_of<StackT>().predicts);
}

}  // namespace

TEST_CASE("a pipeline of any stack gives the commands of the template, to the last one") {
  check_same<stacks::LruCache>(false);
  check_same<stacks::LruCache>(true);
  check_same<stacks::CrossLayerLru>(false);
  check_same<stacks::MoeInfinity>(true);
  check_same<stacks::Hobbit>(false);
  check_same<stacks::ImportanceDriven>(false);
}

TEST_CASE("a pipeline of any stack refuses routes where the stack needs scores, when it is asked") {
  StackTable table;
  table.add<stacks::ImportanceDriven>("importance-driven");
  const ModelShape m = model(2, 8, 2, 2);
  const auto config = table.configure("importance-driven", m, m.all_bytes() / 2);
  Logged link(config->settings().model);
  const auto pipe = config->start(link);
  pipe->begin_step(StepOf(Phase::decode, 1));
  CHECK(pipe->traits().router_needs_scores);
  const std::vector<Route> routes(2, Route{1, 0.5F});
  CHECK_THROWS_WITH_AS(
      pipe->plan(0, routes),
      "plan, layer 0: this stack needs the scores of all experts, expected plan(scores) instead of routes", UsageError);
}

TEST_CASE("stacks by name: what is added can be made, with a set-up of one's own, and nothing else") {
  StackTable table;
  table.add<stacks::LruCache>("lru");
  table.add<stacks::CrossLayerLru>("narrow", [](auto& config, Budget budget) {
    stacks::CrossLayerLru::set_up(config, budget);
    config.predictor.percentile = 90;
    config.transient_prefill_rows = 7;
  });
  CHECK(table.names() == std::vector<std::string>{"lru", "narrow"});
  CHECK_THROWS_WITH_AS(table.add<stacks::OnDemand>("lru"), "two stacks are named lru, expected different names",
                       ConfigError);
  const ModelShape m = model(2, 8, 2, 2);
  CHECK_THROWS_WITH_AS(static_cast<void>(table.configure("lur", m, m.all_bytes())),
                       "no stack is named lur, expected one of: lru, narrow", ConfigError);
  const auto narrow = table.configure("narrow", m, {m.all_bytes() / 2, 4});
  CHECK(narrow->settings().transient_prefill_rows == 7);
  CHECK(narrow->settings().allotment.stream_slots == 4);
  CHECK(narrow->settings().allotment.bytes() <= m.all_bytes() / 2);
  CHECK(narrow->storage_bytes() > 0);
  CHECK_THROWS_AS(static_cast<void>(table.configure("lru", m, 10)), ConfigError);
}
