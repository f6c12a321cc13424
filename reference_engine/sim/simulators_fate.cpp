#include "sim/simulator.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

std::vector<SimulatorEntry> fate_simulators() {
  SimulatorTable table;
  each_fate_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
