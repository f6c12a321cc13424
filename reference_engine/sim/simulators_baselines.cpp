#include "sim/simulator.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

std::vector<SimulatorEntry> baseline_simulators() {
  SimulatorTable table;
  each_baseline_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
