// Stacks of an engine's own beside LRU and what `ferry` decides.
#include <type_traits>

#include "decide/own/own.hpp"
#include "decide/sorted_report.hpp"

int main(int argc, char** argv) {
  using namespace ferry;
  const auto set_up = [](auto name, const char* called) {
    using S = typename decltype(name)::type;
    bench::register_layer<S>(called, false, [](CoreConfig<S>& c, std::uint64_t budget) { S::set_up(c, budget); });
  };
  set_up(std::type_identity<stacks::LruCache>{}, "lru");
  set_up(std::type_identity<stacks::Ferry>{}, "ferry");
  bench::register_own();
  return bench::run_and_report("own", argc, argv);
}
