#include "inference/pipeline_runner.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

std::vector<RunnerEntry> fate_runners() {
  RunnerTable table;
  each_fate_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
