#include "stacks/stack_types.hpp"

namespace ferry::engine {

std::vector<StackType> importance_types() {
  part::TypeTable table;
  each_importance_stack(table);
  return std::move(table.types);
}

}  // namespace ferry::engine
