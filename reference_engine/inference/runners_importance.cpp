#include "inference/pipeline_runner.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

std::vector<RunnerEntry> importance_runners() {
  RunnerTable table;
  each_importance_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
