// Template stacks beside the same stacks written with virtual interfaces, hash maps, lists and vectors.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layer.hpp"
#include "shared/google_benchmark.hpp"
#include "shared/median.hpp"
#include "stacks/stack_config.hpp"
#include "virtual_stack.hpp"

namespace {

using namespace ferry;
using namespace ferry::bench;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t pass = Routing::steps * Routing::layers;

/// Does what bench::LayerDecision does, for a stack behind virtual interfaces.
class VirtualDecision {
 public:
  VirtualDecision(const char* stack, const Allotment& allotment, const Routing& routing) : routing_(routing) {
    dynamic::EngineConfig config;
    config.experts = routing.model().experts;
    config.top_k = routing.model().top_k;
    for (const Pool& pool : allotment.pools) config.slots.push_back(static_cast<int>(pool.slots));
    config.staging_slots = static_cast<int>(allotment.stream_slots);
    config.copy_ns = copy_cost;
    engine_ = dynamic::make_engine(stack, config);
    for (std::uint32_t i = 0; i < pass; ++i) next();
  }

  void next() {
    routing_.fetch_next(step_, layer_, 0);  // as the other side does
    for (int d = 1; d <= engine_->look_ahead_depth(); ++d) {
      routing_.fetch_next(step_, layer_, static_cast<std::uint32_t>(d));
    }
    const dynamic::Plan plan = engine_->plan(layer_, of(routing_.scores(step_, layer_)));
    for (int d = 1; d <= engine_->look_ahead_depth() && layer_ + d < Routing::layers; ++d) {
      const auto distance = static_cast<std::uint16_t>(d);
      benchmark::DoNotOptimize(engine_->look_ahead(layer_ + d, of(routing_.predicted(step_, layer_, distance))));
    }
    for (const dynamic::Task& t : plan.resident) engine_->done(t);
    for (const dynamic::Task& t : plan.arriving) engine_->done(t);
    engine_->finish(layer_, {layer_times.attention, layer_times.gate, layer_times.device});
    if (++layer_ < Routing::layers) return;
    layer_ = 0;
    step_ = step_ + 1 == Routing::steps ? 0 : step_ + 1;
  }

  [[nodiscard]] const dynamic::Stats& stats() const { return engine_->stats(); }

 private:
  static std::span<const float> of(const Scores& s) { return {s.select.data, s.select.size}; }

  const Routing& routing_;
  std::unique_ptr<dynamic::Engine> engine_;
  std::uint32_t step_ = 0;
  std::uint16_t layer_ = 0;
};

dynamic::Stats stats_of(const Counters& c) {
  return {c.of(Phase::decode).hits, c.of(Phase::decode).misses, c.prefetch.issued};
}

/// Two that decide differently cannot be compared.
void require_same(const char* stack, const dynamic::Stats& ours, const dynamic::Stats& theirs) {
  if (ours == theirs) return;
  std::fprintf(stderr,
               "virtual-baseline: %s decides differently: %llu hits, %llu misses, %llu prefetches as a template, %llu,"
               " %llu, %llu behind virtual interfaces\n",
               stack, static_cast<unsigned long long>(ours.hits), static_cast<unsigned long long>(ours.misses),
               static_cast<unsigned long long>(ours.prefetches), static_cast<unsigned long long>(theirs.hits),
               static_cast<unsigned long long>(theirs.misses), static_cast<unsigned long long>(theirs.prefetches));
  std::exit(1);
}

/// Google Benchmark's time is that of one layer behind virtual interfaces. A turn is one pass over the same routing with each
/// of the two; which goes first changes from turn to turn, so that noise meets both.
template <class Stack>
void compare(benchmark::State& state, const char* stack, const LayerShape& shape) {
  const Routing& routing = Routing::of(shape);
  engine::StackOptions options;
  options.max_rows = shape.batch;
  options.budget_bytes = routing.model().all_bytes() / 4;
  auto config = engine::part::stack_config<Stack>(routing.model(), options, [](std::uint64_t) { return copy_cost; });
  config.top_score_alpha = -1.0F;

  LayerDecision<Stack> ours(config, routing, traits_of<Stack>().preloads);
  VirtualDecision theirs(stack, config.allotment, routing);
  for (std::uint32_t i = 0; i < pass; ++i) {
    require_same(stack, stats_of(ours.counters()), theirs.stats());
    ours.next();
    theirs.next();
  }

  const auto timed = [](auto& decision) {
    const auto begin = Clock::now();
    for (std::uint32_t i = 0; i < pass; ++i) decision.next();
    return std::chrono::duration<double>(Clock::now() - begin).count() / pass;
  };
  std::vector<double> seconds[2];
  for (int turn = 0; auto _ : state) {
    for (int i = 0; i < 2; ++i) {
      const int what = (turn + i) % 2;
      seconds[what].push_back(what == 0 ? timed(ours) : timed(theirs));
    }
    state.SetIterationTime(seconds[1].back());
    ++turn;
  }
  require_same(stack, stats_of(ours.counters()), theirs.stats());
  const double own = median(seconds[0]), other = median(seconds[1]);
  state.counters["template_ns"] = own * 1e9;
  state.counters["virtual_ns"] = other * 1e9;
  state.counters["ratio"] = other / own;
}

template <class Stack>
void add(const char* stack) {
  for (const std::uint32_t batch : {1U, 8U}) {
    const std::string name = std::string("BM_virtual/") + stack + "/B:" + std::to_string(batch);
    benchmark::RegisterBenchmark(name.c_str(), compare<Stack>, stack, LayerShape{64, 6, batch})
        ->UseManualTime()
        ->Iterations(101);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!ferry::bench::read_arguments("virtual-baseline", argc, argv)) return 2;
  add<stacks::LruCache>("lru");
  add<stacks::MixtralOffloading>("mixtral-offloading");
  add<stacks::FateCache>("fate+cache");
  ::benchmark::RunSpecifiedBenchmarks();
}
