/// @file
/// Google Benchmark's side of layer.hpp: `BM_layer/<stack>/E:<n>/k:<n>/B:<n>`.
#pragma once
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "layer.hpp"

namespace ferry::bench {

/// Experts of a layer, chosen ones, rows of a step.
inline constexpr LayerShape layer_shapes[] = {{64, 6, 1}, {64, 6, 8}, {8, 2, 1}, {256, 8, 1}};

inline std::pair<std::string, std::shared_ptr<void>> last_kept;

/// Keeps what `make` returns as long as `name` is asked for, because a benchmark's function is called several times.
template <class T, class Make>
T& kept(const std::string& name, const Make& make) {
  if (last_kept.first != name) last_kept = {name, make()};
  return *static_cast<T*>(last_kept.second.get());
}

/// Registers a stack at each shape. `configure(config, budget_bytes)` sets what differs from the defaults. The model and the
/// costs are set before it is called; the budget is a quarter of the model's bytes.
template <class Stack, class Configure>
void register_layer(const std::string& name, bool preloads, const Configure& configure) {
  for (const LayerShape& shape : layer_shapes) {
    const std::string full = fmt::format("BM_layer/{}/E:{}/k:{}/B:{}", name, shape.experts, shape.top_k, shape.batch);
    benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) {
      auto& decision = kept<LayerDecision<Stack>>(full, [&] {
        const Routing& routing = Routing::of(shape);
        CoreConfig<Stack> config;
        config.model = routing.model();
        for (Nanoseconds& ns : config.copy_ns) ns = copy_cost;
        configure(config, config.model.all_bytes() / 4);
        return std::make_shared<LayerDecision<Stack>>(config, routing, preloads);
      });
      const Counters warm = decision.counters();
      for (auto _ : state) decision.next();
      const Counters last = decision.counters();
      const auto a_layer = [&](std::uint64_t now, std::uint64_t before) {
        return benchmark::Counter(static_cast<double>(now - before), benchmark::Counter::kAvgIterations);
      };
      state.counters["plan_ns"] = decision.plan_ns();
      const Outcomes &now = last.of(Phase::decode), &before = warm.of(Phase::decode);
      state.counters["hit%"] = 100.0 * static_cast<double>(now.hits - before.hits) /
                               static_cast<double>(std::max<std::uint64_t>(1, now.requests - before.requests));
      state.counters["misses"] = a_layer(now.misses, before.misses);
      state.counters["prefetches"] = a_layer(last.prefetch.issued, warm.prefetch.issued);
    });
  }
}

}  // namespace ferry::bench
