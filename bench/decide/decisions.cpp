// What deciding costs: named stacks as whole-layer decisions, and each policy's operations alone.
#include <optional>

#include "ferry/cache/fld.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/sieve.hpp"
#include "layer_benchmark.hpp"
#include "sorted_report.hpp"
#include "stacks/stack_table.hpp"
#include "support/policies.hpp"

namespace {

using namespace ferry;
using namespace ferry::bench;

/// Takes the rows of stack_table.hpp.
struct NamedStacks {
  template <class Stack>
  void stack(const char* name) {
    register_layer<Stack>(name, traits_of<Stack>().preloads,
                          [](CoreConfig<Stack>& c, std::uint64_t budget) { Stack::set_up(c, budget); });
  }
  template <Precision p>
  void resident(const char* name) {
    register_layer<stacks::LruCache>(name, true, [](CoreConfig<stacks::LruCache>& c, std::uint64_t /*budget*/) {
      c.precision.precision = p;
      c.allotment = everything(c.model, p);
    });
  }
};

constexpr std::uint16_t layers = Routing::layers;

/// Runs on a full pool over all layers. A fixed rule draws what is used and what comes in, popular experts more often.
template <class Cache>
void cache_operations(const char* name, const Cache& policy) {
  for (const std::uint32_t slots : {64U, 512U}) {
    const auto drawn = [](std::uint64_t& state) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const auto x = static_cast<std::uint32_t>(state >> 40U);  // 24 bits
      const auto e = static_cast<std::uint16_t>(std::uint64_t{x & 0xfffU} * (x >> 12U) * 64 >> 24U);
      return ExpertId{static_cast<std::uint16_t>(x % layers), e};
    };
    const auto fill = [=](auto& cache) {
      for (std::uint32_t s = 0; s < slots; ++s) {
        const Variant v{{static_cast<std::uint16_t>(s % layers), static_cast<std::uint16_t>(s / layers)}};
        cache->touch(v, no_slot);
        cache->replace(s, v, true);
      }
    };
    benchmark::RegisterBenchmark(fmt::format("BM_cache/{}/hit/slots:{}", name, slots).c_str(), [=](auto& state) {
      test::Placed<Cache> cache(PoolShape{slots, 0, layers, 64}, policy);
      fill(cache);
      std::uint64_t draw = 1;
      for (auto _ : state) {
        const ExpertId id = drawn(draw);
        const std::uint32_t slot = (id.layer + std::uint32_t{id.expert} * layers) % slots;
        const Variant v{{static_cast<std::uint16_t>(slot % layers), static_cast<std::uint16_t>(slot / layers)}};
        if constexpr (ferry::part::SeesUse<Cache>) cache->used(v);
        cache->touch(v, slot);
      }
    });
    // Comes in for `v`; the slot where it lies then, or no_slot.
    const auto miss = [=](auto& cache, std::vector<std::uint8_t>& barred, Variant v) {
      if constexpr (ferry::part::SeesUse<Cache>) cache->used(v);
      cache->touch(v, no_slot);
      const std::uint32_t slot = cache->victim(v, {barred.data(), 1});
      if (slot != no_slot) cache->replace(slot, v, true);
      return slot;
    };
    // The misses are found beforehand, since it takes as long as they do to look for an expert that is absent.
    const auto find_misses = [=](std::size_t count) {
      test::Placed<Cache> cache(PoolShape{slots, 0, layers, 64}, policy);
      fill(cache);
      std::vector<std::uint8_t> barred(slots);
      std::vector<bool> held(std::size_t{layers} * 64);
      std::vector<Variant> holds(slots), misses;
      const auto held_of = [&](ExpertId id) { return held[id.layer * 64U + id.expert]; };
      for (std::uint32_t s = 0; s < slots; ++s) {
        holds[s] = {{static_cast<std::uint16_t>(s % layers), static_cast<std::uint16_t>(s / layers)}};
        held_of(holds[s].id) = true;
      }
      std::uint64_t draw = 1;
      while (misses.size() < count) {
        Variant v{drawn(draw)};
        while (held_of(v.id)) {  // the next that is absent, through all layers
          if (++v.id.expert < 64) continue;
          v.id.expert = 0;
          v.id.layer = static_cast<std::uint16_t>((v.id.layer + 1) % layers);
        }
        misses.push_back(v);
        const std::uint32_t slot = miss(cache, barred, v);
        if (slot == no_slot) continue;
        held_of(holds[slot].id) = false;
        held_of(v.id) = true;
        holds[slot] = v;
      }
      return misses;
    };
    benchmark::RegisterBenchmark(fmt::format("BM_cache/{}/miss/slots:{}", name, slots).c_str(), [=](auto& state) {
      const std::vector<Variant> misses = find_misses(1U << 16U);
      std::vector<std::uint8_t> barred(slots);
      std::optional<test::Placed<Cache>> cache;
      std::size_t next = misses.size();
      for (auto _ : state) {
        if (next == misses.size()) {  // from the beginning, in a cache as it was then
          state.PauseTiming();
          fill(cache.emplace(PoolShape{slots, 0, layers, 64}, policy));
          next = 0;
          state.ResumeTiming();
        }
        miss(*cache, barred, misses[next++]);
      }
    });
  }
}

/// Calls `operation(routing, step, layer)` for one layer after another.
template <class Operation>
void walk(benchmark::State& state, const Routing& routing, const Operation& operation) {
  std::uint32_t step = 0;
  std::uint16_t layer = 0;
  for (auto _ : state) {
    operation(routing, step, layer);
    if (++layer < layers - 1) continue;  // the last has no next one to predict
    layer = 0;
    step = step + 1 == Routing::steps ? 0 : step + 1;
  }
}

template <class Operation>
void at_each_shape(const std::string& name, const Operation& operation) {
  for (const LayerShape& shape : layer_shapes) {
    benchmark::RegisterBenchmark(
        fmt::format("{}/E:{}/k:{}/B:{}", name, shape.experts, shape.top_k, shape.batch).c_str(),
        [=](benchmark::State& state) {
          const Routing& routing = Routing::of(shape);
          operation(state, routing, ferry::Shape{layers, shape.experts, shape.top_k, shape.batch});
        });
  }
}

template <class Predictor>
void predictor_operations(const char* name) {
  at_each_shape(fmt::format("BM_predict/{}", name), [](benchmark::State& state, const Routing& routing,
                                                       const ferry::Shape& shape) {
    test::Placed<Predictor> predictor(shape);
    std::vector<Request> requests(shape.experts);
    std::vector<Route> routes(std::size_t{shape.max_rows} * shape.top_k);
    constexpr RowSource rows = ferry::part::rows_of<Predictor>(Phase::decode);
    walk(state, routing, [&](const Routing& r, std::uint32_t step, std::uint16_t layer) {
      if constexpr (rows == RowSource::none) {  // it lives on what it observes, and each row's best will do
        if constexpr (ferry::part::BeginsStep<Predictor>) {
          if (layer == 0) predictor->begin_step({Phase::decode, r.sequences()});
        }
        const Scores s = r.scores(step, layer);
        for (std::uint32_t row = 0; row < shape.max_rows; ++row) {
          detail::best_of(s.select.data + std::size_t{row} * shape.experts, shape.experts, shape.top_k,
                          routes.data() + std::size_t{row} * shape.top_k);
        }
        predictor->observe(layer, {routes.data(), static_cast<std::uint32_t>(routes.size())}, {});
      }
      Scores s = rows == RowSource::partial_hidden ? r.partial(step, layer) : r.predicted(step, layer, 1);
      if (rows == RowSource::none) s.select = s.weight = {};
      Out<Request> out{requests.data(), static_cast<std::uint32_t>(requests.size()), 0};
      predictor->predict(Phase::decode, s, out);
      benchmark::DoNotOptimize(out.size);
    });
  });
}

template <class Router>
void router_operations(const char* name) {
  at_each_shape(fmt::format("BM_route/{}", name),
                [](benchmark::State& state, const Routing& routing, const ferry::Shape& shape) {
                  test::Placed<Router> router(shape);
                  std::vector<Route> routes(std::size_t{shape.max_rows} * shape.top_k);
                  std::vector<State> present(shape.experts);
                  for (std::size_t e = 0; e < present.size(); e += 4) present[e] = State::resident;
                  walk(state, routing, [&](const Routing& r, std::uint32_t step, std::uint16_t layer) {
                    Out<Route> out{routes.data(), static_cast<std::uint32_t>(routes.size()), 0};
                    router->route(Phase::decode, r.scores(step, layer), {present.data(), shape.experts}, out);
                    benchmark::DoNotOptimize(routes.data());
                  });
                });
}

/// Requests as a layer has them.
std::vector<Request> some_requests(std::uint32_t n) {
  std::vector<Request> requests(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    Request& r = requests[i];
    r.want.id.expert = static_cast<std::uint16_t>(i);
    r.rows = 1 + i * 5 % 7;
    r.unimportance = static_cast<float>(i * 3 % n) / static_cast<float>(n);
    r.copy_ns = copy_cost;
    r.host_ns = layer_times.host;
  }
  return requests;
}

template <class Selector>
void selector_operations(const char* name) {
  for (const std::uint32_t n : {6U, 32U}) {
    benchmark::RegisterBenchmark(fmt::format("BM_select/{}/requests:{}", name, n).c_str(), [=](auto& state) {
      Selector selector;
      std::vector<Request> requests = some_requests(n);
      for (auto _ : state) {
        selector.select(Phase::decode, true, {requests.data(), n});
        benchmark::DoNotOptimize(requests.data());
        benchmark::ClobberMemory();
      }
    });
  }
}

template <class Scheduler>
void scheduler_operations(const char* name) {
  for (const std::uint32_t n : {6U, 32U}) {
    benchmark::RegisterBenchmark(fmt::format("BM_schedule/{}/requests:{}", name, n).c_str(), [=](auto& state) {
      const Scheduler scheduler;
      const std::vector<Request> fresh = some_requests(n);
      std::vector<Request> requests = fresh;
      const PrefetchWindow window{Phase::decode, 1, 6 * copy_cost, 0, 0};
      for (auto _ : state) {
        for (std::uint32_t i = 0; i < n; ++i) requests[i].rows = fresh[i].rows;
        scheduler.order(Phase::decode, true, {requests.data(), n});
        benchmark::DoNotOptimize(scheduler.split(Phase::decode, {requests.data(), n}));
        benchmark::DoNotOptimize(scheduler.take(window, {requests.data(), n}));
        benchmark::ClobberMemory();
      }
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  NamedStacks named;
  engine::each_baseline_stack(named);
  engine::each_fate_stack(named);
  engine::each_hobbit_stack(named);
  engine::each_importance_stack(named);
  engine::each_own_stack(named);

  cache_operations("fifo", FifoCache{});
  cache_operations("lru", Lru{});
  cache_operations("lfu", Lfu{});
  cache_operations("lhu", Lhu{});
  cache_operations("fld", Fld{});
  cache_operations("multidimensional", Multidimensional{});
  cache_operations("arc", Arc{});
  cache_operations("sieve", Sieve{});
  cache_operations("random", RandomVictim{});
  cache_operations("score-window", ScoreWindow{});
  cache_operations("score-average", ScoreAverage{});

  predictor_operations<CrossLayerGate>("cross-layer-gate");
  predictor_operations<StackedGates>("stacked-gates");
  predictor_operations<PartialHidden>("partial-hidden");
  predictor_operations<ActivationPath>("activation-path");
  predictor_operations<ActivationMatrix>("activation-matrix");
  predictor_operations<EveryExpert>("every-expert");

  // What a pipeline checks of a layer's four calls.
  benchmark::RegisterBenchmark("BM_checks/calls:4", [](benchmark::State& state) {
    const ModelShape shape{{Routing::layers, 64, 6, 1, Renormalise::no}, {}};
    ferry::detail::CallOrder calls(shape);
    const Residency there;
    const std::vector<float> row(64);
    const std::uint32_t sequence = 0;
    std::uint16_t layer = layers;
    for (auto _ : state) {  // plan, look_ahead, done, finish
      if (layer == layers) {
        benchmark::DoNotOptimize(calls.begin_step({Phase::decode, {&sequence, 1}}));
        layer = 0;
      }
      calls.plan(Scores{layer, row, row});
      benchmark::ClobberMemory();
      calls.look_ahead(Scores{layer, row, row});
      benchmark::ClobberMemory();
      calls.done({}, there);
      benchmark::ClobberMemory();
      calls.finish(layer++, {});
      benchmark::ClobberMemory();
    }
  });

  router_operations<TopK>("top-k");
  router_operations<ExpertCacheRouter>("expert-cache");
  router_operations<ExpertSkipping>("expert-skipping");

  selector_operations<FixedPrecision>("fixed");
  selector_operations<ImportanceThresholds>("importance-thresholds");

  scheduler_operations<stacks::LoadEverything>("all");
  scheduler_operations<stacks::FateSchedule>("transfer-budget");
  scheduler_operations<stacks::HobbitSchedule>("first-miss");
  scheduler_operations<Schedule<NoLimit, BatchSizeOrder, BestSplit>>("greedy-split");
  scheduler_operations<Schedule<NoLimit, BatchSizeOrder, TwoPointer>>("two-pointer");
  return run_and_report("decisions", argc, argv);
}
