#include "pipeline_runner.hpp"

namespace ferry::engine {

std::vector<StackEntry> fate_stacks() {
  using namespace stacks;
  return {
      stack_entry<FatePrefetch>("fate+prefetch", "Fate's prefetch alone", true),
      stack_entry<FateCache>("fate+cache", "its prefetch and its cache", true),
      stack_entry<Fate>("fate", "Fate: prefetch, shallow-favouring ARC, INT4 and INT2", false),
  };
}

}  // namespace ferry::engine
