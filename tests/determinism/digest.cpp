// Prints a digest of every command of many random runs. It is built by several compilers at several optimisation levels, and
// all must print the same. With FERRY_EVERY_STACK it runs stacks of all policies.
#include <cstdio>
#include <cstdlib>

#include "support/random_load.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

std::uint64_t runs = 300;

template <class StackT>
void print(const char* name) {
  std::uint64_t all = 0;
  for (std::uint64_t seed = 0; seed < runs; ++seed) {
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

int main(int count, char** arguments) {
  if (count > 1) runs = std::strtoull(arguments[1], nullptr, 10);
  print<stacks::OnDemand>("on-demand");
  print<stacks::LruCache>("lru");
  print<stacks::CrossLayerLru>("cross-layer-lru");
  print<LossyStack>("lossy");
#ifdef FERRY_EVERY_STACK
  print<stacks::LayerStream>("layer-stream");
  print<stacks::MoeInfinity>("moe-infinity");
  print<stacks::ActivationPathStack>("activation-path");
  print<stacks::StaticHost>("static-host");
  print<stacks::HybriMoe>("hybrimoe");
  print<stacks::Ferry>("ferry");
  print<stacks::FerryLossy>("ferry-lossy");
  print<stacks::FerryDevice>("ferry-device");
  print<stacks::FateCache>("fate-cache");
  print<stacks::Fate>("fate");
  print<stacks::HobbitPrefetch>("hobbit-prefetch");
  print<stacks::Hobbit>("hobbit");
  print<stacks::HobbitCooperative>("hobbit-cooperative");
  print<stacks::ImportanceRouter>("importance-router");
  print<stacks::ImportanceDriven>("importance-driven");
  print<stacks::ImportanceBalanced>("importance-balanced");
#endif
}
