// Prints a digest of every command of many random runs. Built by several compilers at several optimisation
// levels: all must print the same.
#include <cstdio>

#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

template <class StackT>
void print(const char* name) {
  std::uint64_t all = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Scenario<StackT> s(seed);
    VirtualClock clock(s.config.model, {1'000'000'000, 20, false});
    Recorded link(clock);
    OffloadPipeline<StackT, Recorded<VirtualClock>> pipe(s.config, link);
    drive(
        s, pipe, 40, nullptr, [&](const Task&) { clock.device(60); },
        [&](std::uint32_t ns) {
          clock.device(ns);
          clock.sync();
        });
    all = all * 1099511628211ULL + link.log.commands;
    all += static_cast<std::uint64_t>(clock.now());
  }
  std::printf("%s %016llx\n", name, static_cast<unsigned long long>(all));
}

}  // namespace

int main() {
  print<stacks::OnDemand>("on-demand");
  print<stacks::LruCache>("lru");
  print<stacks::CrossLayerLru>("cross-layer-lru");
  print<LossyStack>("lossy");
}
