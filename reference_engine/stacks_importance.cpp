#include "pipeline_runner.hpp"

namespace ferry::engine {

std::vector<StackEntry> importance_stacks() {
  using namespace stacks;
  return {
      stack_entry<ImportanceEviction>("importance+ce", "eviction by recent scores", true),
      stack_entry<ImportanceRouter>("importance+er", "and low-score experts replaced by resident ones", false),
      stack_entry<ImportancePrefetch>("importance+pre", "and top-score experts prefetched", false),
      stack_entry<ImportanceDriven>("importance-driven", "all of it: and misses shared with the host", false),
  };
}

}  // namespace ferry::engine
