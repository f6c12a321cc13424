#include "command/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "stacks/budget.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

BesideExperts beside_experts(const Model& model, const std::vector<std::uint32_t>& positions, std::uint32_t batch,
                             std::uint32_t prefill_chunk) {
  const ModelConfig& c = model.config();
  // For each row: hidden states around attention, gate and experts; queries, keys and values; the experts' activations; the
  // gate's scores. Logits are counted below, for one row of each sequence.
  const LinearAttention& d = c.linear;
  std::uint64_t heads = 0;
  for (const LayerConfig& l : c.layer)
    heads = std::max(heads, (c.heads + std::uint64_t{2} * l.kv_heads) * l.head_dim * 2);
  const std::uint64_t others =
      d.rule == LinearRule::convolution ? 4ULL * c.hidden : d.channels() + 2ULL * d.value_heads * (d.value_dim + 1);
  const std::uint64_t norms = c.names.experts_norm.empty() ? 8 : 12;  // hidden states and their normed copies
  const std::uint64_t row = norms * c.hidden + std::max(heads, others) +
                            3ULL * (std::uint64_t{c.top_k} * c.expert_width + c.shared_width) + 4ULL * c.experts;
  std::uint64_t most = 0;  // keys and values of a batch
  for (std::size_t first = 0; first < positions.size(); first += batch) {
    std::uint64_t together = 0;
    for (std::size_t i = first; i < std::min<std::size_t>(positions.size(), first + batch); ++i) {
      together += cache_bytes(c, CacheRoom(c, positions[i], prefill_chunk));
    }
    most = std::max(most, together);
  }
  const std::uint64_t floats = row * std::max(prefill_chunk, batch) + std::uint64_t{c.vocabulary} * batch;
  return {model.dense_bytes(), most, sizeof(float) * floats + model.fixed_bytes()};
}

std::uint64_t left_for_experts(const std::string& device_memory, const BesideExperts& beside,
                               std::uint64_t all_experts) {
  const std::uint64_t all = parse_budget(device_memory, 0, "--device-memory");
  const std::uint64_t needed = beside.weights + beside.keys_and_values + beside.activations;
  const std::string what = fmt::format("{} bytes of weights, {} of keys and values, {} of activations", beside.weights,
                                       beside.keys_and_values, beside.activations);
  if (all <= needed) {
    throw InputError(fmt::format("--device-memory {}: {} take {} bytes, and nothing is left for experts: expected more",
                                 device_memory, what, needed));
  }
  std::cerr << fmt::format("--device-memory {}: {} leave {} bytes for experts, {:.1f}% of all\n", device_memory, what,
                           all - needed, 100.0 * static_cast<double>(all - needed) / static_cast<double>(all_experts));
  return all - needed;
}

}  // namespace ferry::engine
