#include "pipeline_runner.hpp"
#include "stack_table.hpp"

namespace ferry::engine {

std::vector<RunnerEntry> importance_runners() {
  RunnerTable table;
  each_importance_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
