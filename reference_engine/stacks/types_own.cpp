#include "stacks/stack_types.hpp"

namespace ferry::engine {

std::vector<StackType> own_types() {
  part::TypeTable table;
  each_own_stack(table);
  return std::move(table.types);
}

}  // namespace ferry::engine
