// A custom stack, composed at compile time from parts of all three papers and a cache policy that is written here.
#include <cstdio>
#include <random>
#include <vector>

#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

using namespace ferry;

/// Evicts the expert that was used most recently: better than LRU for a loop that is longer than the cache.
class MostRecent {
 public:
  void reserve(Carver& carve, const PoolShape& pool) { carve(used_, pool.slots); }
  FERRY_HD void touch(Variant /*what*/, std::uint32_t slot) noexcept {
    if (slot != no_slot) used_[slot] = ++now_;
  }
  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    std::uint32_t best = no_slot;
    for (std::uint32_t s = 0; s < used_.size(); ++s) {
      if (!barred[s] && (best == no_slot || used_[s] > used_[best])) best = s;
    }
    return best;
  }
  FERRY_HD void replace(std::uint32_t slot, Variant /*what*/, bool /*demand*/) noexcept { used_[slot] = ++now_; }

 private:
  Array<std::uint64_t> used_;  // [slots]
  std::uint64_t now_ = 0;
};
static_assert(CachePolicy<MostRecent>);

template <class Cache>
using Composed = Stack<StackedGates,                                        // HOBBIT: several layers ahead
                       Cache, FixedPrecision,                               //
                       Schedule<TransferBudget, ArrivalOrder, DeviceOnly>,  // Fate: no more than a layer's time hides
                       ExpertCacheRouter>;                                  // Importance-driven: substitutes

/// Decodes 300 made-up tokens on a simulated link, and prints what became of the experts. False if not all are counted.
template <class Cache>
bool run(const char* name) {
  CoreConfig<Composed<Cache>> config;
  config.model.layers = 6;
  config.model.experts = 16;
  config.model.top_k = 2;
  config.model.max_rows = 1;
  config.model.renormalise = Renormalise::yes;
  config.model.expert_bytes = {{0, 0, 0, 0, 1 << 20}};
  config.allotment = one_pool(config.model, config.model.all_bytes() / 4);
  config.predictor.depth = 2;
  config.router.alpha = 0.2F;
  config.copy_ns[static_cast<unsigned>(Precision::full)] = 65'536;
  VirtualClock clock(config.model, {.bytes_per_s = 16'000'000'000});
  OffloadPipeline<Composed<Cache>, VirtualClock> pipe(config, clock);

  std::mt19937 random(1);
  std::vector<float> scores(std::size_t{6} * 16, 0.05F);  // of each layer: an expert drifts in and out of favour
  const std::uint32_t sequence = 0;
  auto of = [&](std::uint16_t layer) {
    const View<const float> row{&scores[layer * std::size_t{16}], 16};
    return Scores{layer, row, row};
  };
  for (int token = 0; token < 300; ++token) {
    for (float& s : scores) s = 0.9F * s + 0.1F * static_cast<float>(random() % 1000) / 1000.0F;
    pipe.begin_step({Phase::decode, {&sequence, 1}});
    for (std::uint16_t l = 0; l < 6; ++l) {
      clock.device(100'000);  // attention and gate
      clock.sync();
      const Plan plan = pipe.plan(of(l));
      pipe.look_ahead(RowSource::gate_input, [&](std::uint16_t ahead, std::uint16_t) { return of(ahead); });
      for (const Task& task : plan.arriving) pipe.wait(task);
      clock.device(20'000 * (plan.resident.size + plan.arriving.size));
      pipe.finish(l, {100'000, 0, 20'000, 0});
    }
  }
  const Outcomes& o = pipe.counters().of(Phase::decode);
  std::printf("%-12s %4.1f%% hits, %4.1f%% substituted, %5.1f us a token stalled\n", name, 100 * o.hit_rate(),
              100.0 * static_cast<double>(o.substituted) / static_cast<double>(o.requests),
              static_cast<double>(clock.stall_ns()) / 300e3);
  return o.requests == 300 * 6 * 2 && o.hits + o.late_hits + o.misses + o.substituted == o.requests;
}

}  // namespace

int main() {
  const bool all = run<Lru>("Lru") && run<ScoreWindow>("ScoreWindow") && run<MostRecent>("MostRecent");
  return all ? 0 : 1;
}
