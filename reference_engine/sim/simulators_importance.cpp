#include "sim/simulator.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

std::vector<SimulatorEntry> importance_simulators() {
  SimulatorTable table;
  each_importance_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
