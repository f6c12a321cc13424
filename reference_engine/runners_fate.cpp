#include "pipeline_runner.hpp"
#include "stack_table.hpp"

namespace ferry::engine {

std::vector<RunnerEntry> fate_runners() {
  RunnerTable table;
  each_fate_stack(table);
  return std::move(table.entries);
}

}  // namespace ferry::engine
