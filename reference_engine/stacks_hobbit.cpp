#include "pipeline_runner.hpp"

namespace ferry::engine {

std::vector<StackEntry> hobbit_stacks() {
  using namespace stacks;
  return {
      stack_entry<HobbitDynamic>("hobbit+dynamic", "HOBBIT's precision by importance, with LRU", false),
      stack_entry<HobbitPrefetch>("hobbit+prefetch", "and its adaptive prefetch", false),
      stack_entry<Hobbit>("hobbit", "HOBBIT: and its multidimensional cache", false),
      stack_entry<HobbitCooperative>("hobbit-cooperative", "the same, the host computes what is missing", false),
  };
}

}  // namespace ferry::engine
