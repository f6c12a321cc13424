#include "stacks/configured_stack.hpp"

#include <stdexcept>
#include <vector>

#include "stacks/stack_types.hpp"

namespace ferry::engine {

ConfiguredStack configure_stack(const ModelShape& model, const StackOptions& options, const CopyCost& copy_cost,
                                Clairvoyance knows, const Future& future) {
  static const std::vector<StackType> types = [] {
    std::vector<StackType> all = baseline_types();
    for (auto* more : {own_types, fate_types, hobbit_types, importance_types}) {
      for (StackType& t : more()) all.push_back(t);
    }
    return all;
  }();
  for (const StackType& t : types) {
    if (t.name == options.stack) return t.configure(model, options, copy_cost, knows, future);
  }
  static_cast<void>(find_stack(options.stack));  // throws for an unknown name
  throw std::logic_error("stack " + options.stack + " has no type");
}

}  // namespace ferry::engine
