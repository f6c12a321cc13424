#include "sweep/simulated_run.hpp"

#include "ferry/error.hpp"

namespace ferry::engine {

const char* cost_source_name(CostSource source) {
  switch (source) {
    case CostSource::effective:
      return "effective";
    case CostSource::peak:
      return "peak";
    default:
      return "stated";
  }
}

Costs SimulatedSetting::machine_costs() const {
  if (as_shape.empty()) return machine.costs(trace->work, costs);
  const ModelFacts reference = read_shape(as_shape);
  return as_if(machine.costs(reference.work, costs), reference, trace->trace.model);
}

RunReport run_simulation(const SimulatedSetting& setting, const SimulateOptions& options, Json parameters,
                         std::vector<Span>* spans) {
  const Trace& trace = setting.trace->trace;
  const Costs costs = setting.machine_costs();
  // With all bounds the trace is replayed up to five times: one progress over them.
  const std::uint64_t replays = setting.bounds == BoundsChoice::all ? 5 : 1;
  std::uint64_t behind = 0;
  auto progress = [&](std::uint64_t done, std::uint64_t total) {
    return !options.progress || options.progress(behind * total + done, replays * total);
  };
  SimulateOptions o = options;
  o.progress = progress;
  o.bounds = setting.bounds != BoundsChoice::none;
  o.log = spans != nullptr;
  Simulated simulated = simulate(trace, costs, o);
  if (spans != nullptr) *spans = std::move(simulated.spans);

  RunReport facts;
  facts.model = trace.name;
  facts.stack = options.stack;
  facts.machine = setting.machine.name;
  facts.batch = options.batch;
  facts.layers = trace.model.layers;
  facts.budget_asked_bytes = options.budget_bytes;
  facts.all_expert_bytes = trace.model.all_bytes();
  facts.expert_bytes = trace.model.bytes(0, Precision::full);
  for (std::uint32_t l = 0; l < trace.model.layers; ++l) {
    facts.dense_bytes += setting.trace->work[setting.trace->work.size() == 1 ? 0 : l].dense_bytes;
  }
  facts.throttle_bytes_per_s = costs.link_bytes_per_s;
  SimulatedFacts& s = facts.simulated.emplace();
  s.trace = setting.trace_name;
  s.costs = cost_source_name(setting.costs);
  s.as_shape = setting.as_shape;
  facts.parameters = std::move(parameters);

  auto other = [&](Clairvoyance knows) -> std::optional<SimulatedFacts::Other> {
    ++behind;
    SimulateOptions c = o;
    c.knows = knows;
    c.bounds = c.log = false;
    try {
      const Simulated r = simulate(trace, costs, c);
      const PhaseClock& decode = r.phase[static_cast<unsigned>(Phase::decode)];
      if (decode.steps == 0 || !r.finished) return {};
      return SimulatedFacts::Other{static_cast<double>(decode.total) * 1e-9 / static_cast<double>(decode.steps),
                                   r.counters.of(Phase::decode).hit_rate()};
    } catch (const NoFuture&) {  // this stack has no such variant
      return {};
    }
  };
  if (setting.bounds == BoundsChoice::all && simulated.finished) {
    s.perfect_prediction = other(Clairvoyance::prediction);
    s.belady_cache = other(Clairvoyance::cache);
    s.prediction_and_cache = other(Clairvoyance::both);
    s.belady_demand = other(Clairvoyance::demand);
  }
  return make_report(simulated, std::move(facts));
}

}  // namespace ferry::engine
