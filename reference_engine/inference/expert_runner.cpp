#include "inference/expert_runner.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "inference/pipeline_runner.hpp"
#include "stacks/configured_stack.hpp"
#include "support/clock.hpp"

namespace ferry::engine {
namespace {

/// How fast one thread copies memory here, measured once.
double memory_bytes_per_s() {
  static const double measured = [] {
    const std::vector<std::byte> from(std::size_t{4} << 20U, std::byte{1});
    std::vector<std::byte> to(from.size());
    Nanoseconds least = 0;
    for (int i = 0; i < 4; ++i) {  // the first one touches the pages
      const Nanoseconds begin = now_ns();
      std::memcpy(to.data(), from.data(), from.size());
      const Nanoseconds took = std::max<Nanoseconds>(1, now_ns() - begin);
      if (i > 0 && (least == 0 || took < least)) least = took;
    }
    return static_cast<double>(from.size()) * 1e9 / static_cast<double>(least);
  }();
  return measured;
}

}  // namespace

Nanoseconds usual_linger_ns() {
  return std::thread::hardware_concurrency() > 1 ? 200'000 : 0;
}

void ExpertRunner::end_long_logs(std::size_t most_uses) {
  constexpr std::size_t most_logs = 256;
  std::size_t all = 0;
  for (const UseLog& log : uses) all += log.uses.size();
  if (all < most_uses && uses.size() < most_logs) return;
  const std::array<std::uint64_t, precision_count> slots = statistics().slots;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    for (const UseLog& log : uses) fewest[p] += fewest_copies(log, static_cast<Precision>(p), slots[p]);
  }
  uses.clear();
}

Nanoseconds copy_cost(const RunnerOptions& o, const ExpertStore& store, std::uint64_t bytes) {
  if (o.virtual_costs) return o.virtual_costs->copy(bytes);
  const double per_s = o.link_bytes_per_s > 0 ? static_cast<double>(o.link_bytes_per_s) : memory_bytes_per_s();
  const double disk = store.read_bytes_per_s(), s = 1 / per_s + (disk > 0 ? 1 / disk : 0);
  return static_cast<Nanoseconds>(static_cast<double>(bytes) * 1e9 * s);
}

ModelShape model_shape(const ModelConfig& config, const ExpertStore& store, std::uint32_t max_rows) {
  return model_shape(config, store.layouts(), store.precisions(), max_rows);
}

ModelShape model_shape(const ModelConfig& config, const std::vector<ExpertLayout>& layouts, std::uint8_t precisions,
                       std::uint32_t max_rows) {
  ModelShape m;
  m.renormalise = renormalise_if(config.renormalise);
  m.scale = static_cast<float>(config.routed_scale);
  m.least_sum = static_cast<float>(config.least_sum);
  m.added_to_sum = static_cast<float>(config.added_to_sum);
  m.layers = static_cast<std::uint16_t>(config.moe_layer_count());
  m.experts = static_cast<std::uint16_t>(config.experts);
  m.top_k = static_cast<std::uint16_t>(config.top_k);
  m.max_rows = max_rows;
  if (config.experts_differ()) {
    const auto all = [&](std::uint32_t LayerConfig::*what) {
      const std::vector<std::uint32_t> of = config.of_moe_layers(what);
      return std::vector<std::uint16_t>(of.begin(), of.end());
    };
    m.layer_experts = all(&LayerConfig::experts);
    m.layer_top_k = all(&LayerConfig::top_k);
  }
  for (const ExpertLayout& layout : layouts) {
    ExpertBytes& bytes = m.expert_bytes.emplace_back();
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      // Budgets are shares of the model's own precision, even if it is not stored.
      const bool sized = (precisions >> p & 1U) != 0 || static_cast<Precision>(p) == Precision::full;
      if (sized) bytes[p] = layout.bytes(static_cast<Precision>(p));
    }
  }
  return m;
}

std::unique_ptr<ExpertRunner> make_runner(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                          const RunnerOptions& options) {
  const ConfiguredStack stack = configure_stack(model_shape(config, store, options.max_rows), options,
                                                [&](std::uint64_t bytes) { return copy_cost(options, store, bytes); });
  if (options.virtual_costs) {
    CoreSettings& settings = stack.config->settings();
    settings.costs = layer_costs(*options.virtual_costs, settings.model);
  } else if (stack.config->traits().computes_on_host) {
    stack.config->settings().costs.host_start_ns = handoff_ns();
  }
  return std::make_unique<PipelineRunner>(*stack.config, stack.preloads, store, gates, options);
}

}  // namespace ferry::engine
