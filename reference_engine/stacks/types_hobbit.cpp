#include "stacks/stack_types.hpp"

namespace ferry::engine {

std::vector<StackType> hobbit_types() {
  part::TypeTable table;
  each_hobbit_stack(table);
  return std::move(table.types);
}

}  // namespace ferry::engine
