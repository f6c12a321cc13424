#include "stacks/stack_types.hpp"

namespace ferry::engine {

std::vector<StackType> baseline_types() {
  part::TypeTable table;
  each_baseline_stack(table);
  return std::move(table.types);
}

}  // namespace ferry::engine
