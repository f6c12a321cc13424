#include "sim/simulate.hpp"

#include <algorithm>
#include <vector>

#include "ferry/detail/best.hpp"
#include "ferry/sim/simulation.hpp"
#include "stacks/configured_stack.hpp"
#include "support/memory.hpp"

namespace ferry::engine {
namespace {

/// Throws ConfigError if the tables need too much memory. A small file can name a huge model, for which the system would end
/// the process.
void need_memory(const std::string& stack, const ModelShape& model, std::size_t bytes) {
  const std::uint64_t most = physical_memory() / 5 * 4;
  if (bytes <= most) return;
  throw ConfigError("stack " + stack + " needs " + std::to_string(bytes) + " bytes for a model of " +
                    std::to_string(model.layers) + " layers of " + std::to_string(model.experts) +
                    " experts, expected at most " + std::to_string(most) +
                    " (80% of this machine's memory): simulate a smaller model, or take another stack");
}

/// All experts that a trace asks for, in the order of a replay, which goes by the scores where there are any.
class AskedFor {
 public:
  AskedFor(const Trace& trace, std::uint32_t batch, std::uint32_t chunk) {
    TraceSteps steps(trace, batch, chunk);
    std::vector<std::uint8_t> seen(trace.model.experts);
    std::vector<Route> best(trace.model.top_k);
    while (steps.next()) {
      for (std::uint16_t l = 0; l < trace.model.layers; ++l) {
        starts_.push_back(static_cast<std::uint32_t>(asked_.size()));
        std::fill(seen.begin(), seen.end(), std::uint8_t{0});
        for (const std::uint32_t t : steps.tokens()) {
          const std::uint32_t k = trace.model.top_k_of(l);
          const bool by_scores = !trace.scores.empty() && trace.expert(t, l, 0) != no_expert;
          if (by_scores) detail::best_of(trace.choice_scores_of(t, l), trace.model.experts_of(l), k, best.data());
          for (std::uint32_t i = 0; i < k; ++i) {
            const std::uint16_t e = by_scores ? best[i].expert : trace.expert(t, l, i);
            if (e == no_expert || seen[e] != 0) continue;
            seen[e] = 1;
            asked_.push_back({l, e});
          }
        }
      }
    }
    starts_.push_back(static_cast<std::uint32_t>(asked_.size()));
  }
  [[nodiscard]] Future view() const { return {asked_, starts_}; }

 private:
  std::vector<ExpertId> asked_;
  std::vector<std::uint32_t> starts_;  ///< of each layer of each step, and the end
};

Simulated replay(const AnyConfig& config, bool preload, const Trace& trace, const Costs& costs,
                 const SimulateOptions& o) {
  SimulationOptions options;
  options.batch = o.batch;
  options.prefill_chunk = o.prefill_chunk;
  options.preload = preload;
  options.bounds = o.bounds;
  options.log = o.log;
  const CoreSettings& settings = config.settings();
  need_memory(o.stack, settings.model, config.storage_bytes());
  costs.validate(settings.model);
  VirtualClock clock(settings.model, VirtualClock::options(costs, options.log));
  const std::unique_ptr<AnyPipeline> pipe = config.start(clock);
  Replay<AnyPipeline> simulation(*pipe, clock, settings.model, trace, costs, options);
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
  for (const Phase p : {Phase::prefill, Phase::decode}) r.phase[static_cast<unsigned>(p)] = simulation.clock(p);
  r.prefilled = simulation.prefilled().groups;
  r.prefill = simulation.prefilled().total;
  r.arena_bytes = settings.allotment.bytes();
  if (o.bounds) {
    r.decode_work =
        simulation.decode_work([&](Precision p) { return slots_for(settings.allotment, settings.model, p); });
  }
  for (std::uint16_t d = 1; d <= simulation.look_ahead_depth(); ++d) {
    auto& layers = r.accuracy.emplace_back();
    for (std::uint16_t l = 0; l < trace.model.layers; ++l) layers.push_back(simulation.prediction_accuracy(d, l));
  }
  r.layer_hits = simulation.layer_hits();
  r.spans = simulation.spans();
  return r;
}

}  // namespace

RowNeeds rows_read_by(const StackOptions& options, const ModelShape& model) {
  RowNeeds needs;
  ConfiguredStack stack;
  try {
    stack = configure_stack(model, options, [](std::uint64_t) { return Nanoseconds{0}; });
  } catch (const ConfigError&) {
    return needs;
  }
  const StackTraits traits = stack.config->traits();
  needs.scores = traits.cache_needs_scores || traits.router_needs_scores;
  if (!traits.predicts) return needs;
  for (const RowSource rows : traits.rows) {
    if (rows == RowSource::gate_input) needs.ahead = stack.config->look_ahead_depth();
    if (rows == RowSource::partial_hidden) needs.partial = true;
  }
  return needs;
}

Simulated simulate(const Trace& trace, const Costs& costs, const SimulateOptions& options) {
  if (options.batch == 0 || options.prefill_chunk == 0) {
    throw ConfigError("a replay needs a batch and a prefill chunk of 1 or more");
  }
  SimulateOptions o = options;
  o.max_rows = std::max(o.batch, o.prefill_chunk);
  const CopyCost copy_cost = [&](std::uint64_t bytes) { return costs.copy(bytes); };
  const auto run = [&](const ConfiguredStack& stack) {
    stack.config->settings().costs = layer_costs(costs, trace.model);
    return replay(*stack.config, stack.preloads, trace, costs, o);
  };
  if (o.knows == Clairvoyance::none) return run(configure_stack(trace.model, o, copy_cost));
  const AskedFor asked(trace, o.batch, o.prefill_chunk);
  return run(configure_stack(trace.model, o, copy_cost, o.knows, asked.view()));
}

Simulated simulate_config(const AnyConfig& config, const Trace& trace, const Costs& costs,
                          const SimulateOptions& options) {
  return replay(config, config.traits().preloads, trace, costs, options);
}

}  // namespace ferry::engine
