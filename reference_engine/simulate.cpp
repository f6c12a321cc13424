#include "simulate.hpp"

#include "simulator.hpp"

namespace ferry::engine {

Simulated simulate(const Trace& trace, const Costs& costs, const SimulateOptions& options) {
  static const std::vector<SimulatorEntry> entries = [] {
    std::vector<SimulatorEntry> list = baseline_simulators();
    for (auto* more : {fate_simulators, hobbit_simulators, importance_simulators}) {
      for (SimulatorEntry& e : more()) list.push_back(std::move(e));
    }
    return list;
  }();
  if (options.batch == 0 || options.prefill_chunk == 0) {
    throw ConfigError("a replay needs a batch and a prefill chunk of 1 or more");
  }
  SimulateOptions o = options;
  o.max_rows = std::max(o.batch, o.prefill_chunk);
  for (const SimulatorEntry& e : entries) {
    if (e.info.name == o.stack) return e.run(trace, costs, o);
  }
  static_cast<void>(find_stack(o.stack));  // refuses it
  return {};
}

}  // namespace ferry::engine
