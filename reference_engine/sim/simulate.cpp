#include "sim/simulate.hpp"

#include <unistd.h>

#include "sim/simulator.hpp"

namespace ferry::engine {
namespace part {

void need_memory(const std::string& stack, const ModelShape& model, std::size_t bytes) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return;
  const std::uint64_t most = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) / 5 * 4;
  if (bytes <= most) return;
  throw ConfigError("stack " + stack + " needs " + std::to_string(bytes) + " bytes for a model of " +
                    std::to_string(model.layers) + " layers of " + std::to_string(model.experts) +
                    " experts, expected at most " + std::to_string(most) +
                    " (80% of this machine's memory): simulate a smaller model, or take another stack");
}

}  // namespace part

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
    if (e.name == o.stack) return e.run(trace, costs, o);
  }
  static_cast<void>(find_stack(o.stack));  // refuses it
  return {};
}

}  // namespace ferry::engine
