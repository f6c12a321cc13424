/// @file
/// The implementation of simulate() for one stack.
#pragma once
#include "ferry/cache/belady.hpp"
#include "ferry/predictor/oracle.hpp"
#include "ferry/sim/simulation.hpp"
#include "sim/simulate.hpp"
#include "stacks/stack_config.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

/// One row of the table of stacks.
struct SimulatorEntry {
  const char* name;
  Simulated (*run)(const Trace&, const Costs&, const SimulateOptions&);
};

/// The rows, by the paper that they come from; each in a file of its own, since they take a while to compile.
std::vector<SimulatorEntry> baseline_simulators();
std::vector<SimulatorEntry> fate_simulators();
std::vector<SimulatorEntry> hobbit_simulators();
std::vector<SimulatorEntry> importance_simulators();

namespace part {

/// A small file can name a model whose tables no machine holds: throws ConfigError before the system ends the process
/// for them.
void need_memory(const std::string& stack, const ModelShape& model, std::size_t bytes);

/// Everything that a trace will ask for, in the order of a replay.
struct Future {
  std::vector<ExpertId> asked;
  std::vector<std::uint32_t> starts;  ///< of each layer of each step, and the end

  Future(const Trace& trace, std::uint32_t batch, std::uint32_t chunk) {
    TraceSteps steps(trace, batch, chunk);
    std::vector<std::uint8_t> seen(trace.model.experts);
    while (steps.next()) {
      for (std::uint16_t l = 0; l < trace.model.layers; ++l) {
        starts.push_back(static_cast<std::uint32_t>(asked.size()));
        std::fill(seen.begin(), seen.end(), std::uint8_t{0});
        for (const std::uint32_t t : steps.tokens()) {
          for (std::uint32_t i = 0; i < trace.model.top_k; ++i) {
            const std::uint16_t e = trace.expert(t, l, i);
            if (e == no_expert || seen[e] != 0) continue;
            seen[e] = 1;
            asked.push_back({l, e});
          }
        }
      }
    }
    starts.push_back(static_cast<std::uint32_t>(asked.size()));
  }
  [[nodiscard]] View<const ExpertId> uses() const { return {asked.data(), static_cast<std::uint32_t>(asked.size())}; }
  [[nodiscard]] View<const std::uint32_t> begins() const {
    return {starts.data(), static_cast<std::uint32_t>(starts.size())};
  }
};

template <class S>
using WithOracle = Stack<Oracle, typename S::cache, typename S::precision, typename S::scheduler, typename S::router>;
template <class S>
using WithBelady =
    Stack<typename S::predictor, Belady, typename S::precision, typename S::scheduler, typename S::router>;
using BeladyOnDemand = Stack<NoPrediction, Belady, FixedPrecision, stacks::LoadEverything, TopK>;

/// What two stacks have in common.
template <class To, class From>
CoreConfig<To> same_layout(const CoreConfig<From>& from) {
  CoreConfig<To> to;
  to.model = from.model;
  to.allotment = from.allotment;
  to.transient_prefill_rows = from.transient_prefill_rows;
  to.top_score_alpha = from.top_score_alpha;
  std::copy(std::begin(from.copy_ns), std::end(from.copy_ns), to.copy_ns);
  auto take = [](auto& a, const auto& b) {
    if constexpr (std::is_same_v<std::decay_t<decltype(a)>, std::decay_t<decltype(b)>>) a = b;
  };
  take(to.predictor, from.predictor);
  take(to.cache, from.cache);
  take(to.precision, from.precision);
  take(to.scheduler, from.scheduler);
  take(to.router, from.router);
  return to;
}

template <class S>
Simulated replay(const CoreConfig<S>& config, bool preload, const Trace& trace, const Costs& costs,
                 const SimulateOptions& o) {
  SimulationOptions options;
  options.batch = o.batch;
  options.prefill_chunk = o.prefill_chunk;
  options.preload = preload;
  options.bounds = o.bounds;
  options.log = o.log;
  need_memory(o.stack, config.model, Core<S>::storage_bytes(config));
  Simulation<S> simulation(config, trace, costs, options);
  Simulated r;
  r.finished = true;
  while (simulation.step()) {
    const std::uint64_t done = simulation.clock(Phase::prefill).tokens + simulation.clock(Phase::decode).tokens;
    if (done >= o.max_tokens) break;
    if (o.progress && !o.progress(done, std::min<std::uint64_t>(trace.tokens, o.max_tokens))) {
      r.finished = done == trace.tokens;
      break;
    }
  }
  r.counters = simulation.counters();
  for (const Phase p : {Phase::prefill, Phase::decode}) {
    const PhaseClock& c = simulation.clock(p);
    r.phase[static_cast<unsigned>(p)] = {c.total, c.stall, c.host, c.host_wait, c.link_busy, c.tokens, c.steps};
  }
  r.groups = simulation.groups();
  r.arena_bytes = config.allotment.bytes();
  if (o.bounds) {
    r.decode_work = simulation.decode_work([&](Precision p) { return slots_for(config.allotment, config.model, p); });
  }
  for (std::uint16_t d = 1; d <= simulation.look_ahead_depth(); ++d) {
    auto& layers = r.accuracy.emplace_back();
    for (std::uint16_t l = 0; l < trace.model.layers; ++l) layers.push_back(simulation.prediction_accuracy(d, l));
  }
  r.layer_hits = simulation.layer_hits();
  r.spans = simulation.spans();
  return r;
}

template <class S>
Simulated simulate_config(const CoreConfig<S>& config, bool preload, const Trace& trace, const Costs& costs,
                          const SimulateOptions& o) {
  if (o.knows == Clairvoyance::none) return replay(config, preload, trace, costs, o);
  if constexpr (std::is_same_v<typename S::precision, FixedPrecision> && std::is_same_v<typename S::router, TopK>) {
    const Future future(trace, o.batch, o.prefill_chunk);
    if (o.knows == Clairvoyance::prediction) {
      auto c = same_layout<WithOracle<S>>(config);
      c.predictor.asked = future.uses();
      c.predictor.starts = future.begins();
      c.predictor.depth = std::max<std::uint32_t>(1, ferry::part::depth_of(config.predictor));
      return replay(c, preload, trace, costs, o);
    }
    if constexpr (ferry::part::caches<typename S::cache>()) {
      if (o.knows == Clairvoyance::cache) {
        auto c = same_layout<WithBelady<S>>(config);
        c.cache.future = future.uses();
        return replay(c, preload, trace, costs, o);
      }
      auto c = same_layout<BeladyOnDemand>(config);
      c.cache.future = future.uses();
      return replay(c, preload, trace, costs, o);
    }
    throw NoFuture("stack " + o.stack + " keeps nothing: there is no cache that could know the future");
  }
  throw NoFuture("stack " + o.stack +
                 " chooses precisions or experts by what is resident: there is no one future to know");
}

template <class S>
Simulated simulate_stack(const Trace& trace, const Costs& costs, const SimulateOptions& o) {
  const auto config =
      stack_config<S>(trace.model, trace.renormalise, o, [&](std::uint64_t bytes) { return costs.copy(bytes); });
  return simulate_config(config, stacks::preloads<S>(), trace, costs, o);
}

template <Precision p>
Simulated simulate_resident(const Trace& trace, const Costs& costs, const SimulateOptions& o) {
  const auto config =
      resident_config<p>(trace.model, trace.renormalise, o, [&](std::uint64_t bytes) { return costs.copy(bytes); });
  return simulate_config(config, true, trace, costs, o);
}

}  // namespace part

/// Takes the rows of stack_table.hpp.
struct SimulatorTable {
  std::vector<SimulatorEntry> entries;

  template <class S>
  void stack(const char* name) {
    entries.push_back({name, part::simulate_stack<S>});
  }
  template <Precision p>
  void resident(const char* name) {
    entries.push_back({name, part::simulate_resident<p>});
  }
};

}  // namespace ferry::engine
