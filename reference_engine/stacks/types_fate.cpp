#include "stacks/stack_types.hpp"

namespace ferry::engine {

std::vector<StackType> fate_types() {
  part::TypeTable table;
  each_fate_stack(table);
  return std::move(table.types);
}

}  // namespace ferry::engine
