#include "inference/pipeline_runner.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

std::vector<RunnerEntry> hobbit_runners() {
  RunnerTable table;
  each_hobbit_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
