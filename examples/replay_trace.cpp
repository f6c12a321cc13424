// A cache policy that is written here, in a stack of its own, on recorded routing, beside stacks that come with Ferry, on a
// machine from reference_engine/machines. docs/tutorial.md leads here.
//   replay_trace TRACE [SHAPE [MACHINE [PERCENT]]]    experts count as large as SHAPE's, and PERCENT of them fit
// It is built with the reference engine, whose readers of traces and machines it uses.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ferry/any_pipeline.hpp"
#include "ferry/error.hpp"
#include "ferry/stacks.hpp"
#include "profiles/machine.hpp"
#include "sim/simulate.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;

/// Evicts the expert that was used least of late: each use counts half as much `half_life` steps later.
class LeastOfLate {
 public:
  float half_life = 32;  ///< steps

  void reserve(Carver& carve, const PoolShape& pool) { carve(used_, pool.slots); }
  void begin_step(const Step& /*step*/) noexcept { ++now_; }

  void touch(Variant /*what*/, std::uint32_t slot) noexcept {
    if (slot != no_slot) used_[slot] = {uses(slot) + 1, now_};
  }
  std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    std::uint32_t least = no_slot;
    for (std::uint32_t s = 0; s < used_.size(); ++s) {
      if (!barred[s] && (least == no_slot || uses(s) < uses(least))) least = s;
    }
    return least;
  }
  void replace(std::uint32_t slot, Variant /*what*/, bool /*demand*/) noexcept { used_[slot] = {1, now_}; }

 private:
  struct Used {
    float uses = 0;
    std::uint32_t at = 0;  ///< step
  };
  float uses(std::uint32_t slot) const noexcept {
    return used_[slot].uses * std::exp2(-static_cast<float>(now_ - used_[slot].at) / half_life);
  }

  Array<Used> used_;  // [slots]
  std::uint32_t now_ = 0;
};
static_assert(CachePolicy<LeastOfLate>);

/// What LruCache is, with the other policy: a pool a layer, nothing predicted, every miss copied.
struct Mine : Stack<NoPrediction, LeastOfLate, FixedPrecision, stacks::LoadEverything, TopK>, stacks::PerLayer {};

void run(int argc, char** argv) {
  const engine::TraceFile file(argv[1]);
  const engine::ModelFacts shape = engine::read_shape(argc > 2 ? argv[2] : "qwen1.5-moe-a2.7b");
  const engine::Machine machine = engine::read_machine(argc > 3 ? argv[3] : "rtx3090-pcie3");
  const int percent = argc > 4 ? std::atoi(argv[4]) : 25;
  if (percent < 1 || percent > 100) throw ConfigError("PERCENT must be 1 to 100");

  Trace trace = file.trace;
  trace.model.expert_bytes = shape.model.expert_bytes;
  const Costs costs = machine.costs(shape.work, engine::CostSource::effective);
  engine::SimulateOptions options;
  ModelShape model = trace.model;
  model.max_rows = options.prefill_chunk;

  StackTable stacks;
  stacks.add<stacks::LruCache>("lru");
  stacks.add<Mine>("mine");
  stacks.add<stacks::Ferry>("ferry");
  for (const std::string& name : stacks.names()) {
    const auto config = stacks.configure(name, model, model.all_bytes() * static_cast<std::uint64_t>(percent) / 100);
    CoreSettings& settings = config->settings();
    settings.costs = layer_costs(costs, model);
    settings.copy_ns[static_cast<unsigned>(Precision::full)] = costs.copy(model.bytes(0, Precision::full));
    const engine::Simulated result = engine::simulate_config(*config, trace, costs, options);
    const Outcomes& o = result.counters.of(Phase::decode);
    const PhaseClock& decode = result.phase[static_cast<unsigned>(Phase::decode)];
    std::printf("%-6s %8llu hits of %llu, %6.2f ms a token, of which %6.2f stalled\n", name.c_str(),
                static_cast<unsigned long long>(o.hits), static_cast<unsigned long long>(o.requests),
                static_cast<double>(decode.total) / 1e6 / static_cast<double>(decode.tokens),
                static_cast<double>(decode.stall) / 1e6 / static_cast<double>(decode.tokens));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fputs("replay_trace TRACE [SHAPE [MACHINE [PERCENT]]]\n", stderr), 2;
  try {
    run(argc, argv);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 2;
  }
}
