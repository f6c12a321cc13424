/// @file
/// How a budget of device memory becomes slots. Set-up only: nothing here runs on the hot path.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/error.hpp"
#include "ferry/model.hpp"

namespace ferry {

/// Bytes of one expert, by Precision; 0: not stored at that precision.
using ExpertBytes = std::array<std::uint64_t, precision_count>;

/// The model as the library sees it.
struct ModelShape : Shape {
  std::vector<ExpertBytes> expert_bytes;  ///< one for all layers, or one a layer

  [[nodiscard]] std::uint64_t bytes(std::uint32_t layer, Precision p) const {
    return expert_bytes[expert_bytes.size() == 1 ? 0 : layer][static_cast<unsigned>(p)];
  }
  [[nodiscard]] std::uint64_t largest_bytes() const {
    std::uint64_t most = 0;
    for (const ExpertBytes& b : expert_bytes) most = std::max(most, *std::max_element(b.begin(), b.end()));
    return most;
  }
  /// All routed experts at the model's own precision: what 100% of a budget means.
  [[nodiscard]] std::uint64_t all_bytes() const {
    std::uint64_t sum = 0;
    for (std::uint32_t l = 0; l < layers; ++l) sum += slot_bytes(bytes(l, Precision::full)) * experts;
    return sum;
  }
  /// Slots start at cache lines, so that vector loads from them are aligned.
  [[nodiscard]] static std::uint64_t slot_bytes(std::uint64_t expert_bytes) { return (expert_bytes + 63) / 64 * 64; }

  void validate() const {
    auto need = [](bool good, const std::string& what) {
      if (!good) throw ConfigError("model shape: " + what);
    };
    need(layers > 0 && experts > 0, "layers and experts must be at least 1");
    need(experts < no_expert, "at most 65534 experts a layer");
    need(top_k > 0 && top_k <= experts,
         "top_k is " + std::to_string(top_k) + ", expected 1 to " + std::to_string(experts) + " (experts)");
    need(max_rows > 0, "max_rows must be at least 1");
    need(std::uint64_t{max_rows} * experts <= 0xffffffffULL, "max_rows * experts must fit in 32 bits");
    need(expert_bytes.size() == 1 || expert_bytes.size() == layers,
         "expert_bytes has " + std::to_string(expert_bytes.size()) + " entries, expected 1 or " +
             std::to_string(layers) + " (layers)");
    for (std::uint32_t l = 0; l < layers; ++l) {
      need(bytes(l, Precision::full) > 0, "layer " + std::to_string(l) + " has no bytes at full precision");
    }
  }
};

/// A number of equal slots for the experts of some adjacent layers. One CachePolicy instance looks after it.
struct Pool {
  std::uint16_t first_layer = 0, layers = 0;
  std::uint8_t precisions = 0;  ///< bit 1 << p: these Precisions live here
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
};

/// Every slot of a device: pools first, then the stream slots, which hold an expert only while its layer runs
/// (layers that need more experts than fit, layers without slots, refused admissions).
struct Allotment {
  std::vector<Pool> pools;
  std::uint32_t stream_slots = 0;
  std::uint64_t stream_slot_bytes = 0;

  [[nodiscard]] std::uint32_t slots() const {
    std::uint32_t n = stream_slots;
    for (const Pool& p : pools) n += p.slots;
    return n;
  }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t n = stream_slots * stream_slot_bytes;
    for (const Pool& p : pools) n += p.slots * p.slot_bytes;
    return n;
  }
  /// Where each slot starts in an arena of `bytes()` bytes, and one entry more for its end.
  [[nodiscard]] std::vector<std::uint64_t> offsets() const {
    std::vector<std::uint64_t> at{0};
    auto add = [&](std::uint32_t count, std::uint64_t size) {
      for (std::uint32_t i = 0; i < count; ++i) at.push_back(at.back() + size);
    };
    for (const Pool& p : pools) add(p.slots, p.slot_bytes);
    add(stream_slots, stream_slot_bytes);
    return at;
  }
};

/// The smallest stream pool: with two slots one expert is copied while the other computes.
inline constexpr std::uint32_t least_stream_slots = 2;

namespace part {
inline std::uint8_t bit(Precision p) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(p));
}

/// Bytes that are left for pools beside the stream pool, or a refusal that names what would be enough.
inline std::uint64_t beside_stream(const ModelShape& model, std::uint64_t budget_bytes, std::uint64_t stream_slot) {
  const std::uint64_t stream = least_stream_slots * stream_slot;
  if (budget_bytes < stream) {
    throw ConfigError("budget of " + std::to_string(budget_bytes) + " bytes is too small: at least " +
                      std::to_string(stream) + " bytes are needed, " + std::to_string(least_stream_slots) +
                      " slots of the largest expert (all experts together: " + std::to_string(model.all_bytes()) +
                      " bytes)");
  }
  return budget_bytes - stream;
}
}  // namespace part

/// A pool for each layer with room for all its experts: nothing is ever evicted, no stream slots.
inline Allotment everything(const ModelShape& model, Precision p = Precision::full) {
  model.validate();
  Allotment a;
  for (std::uint16_t l = 0; l < model.layers; ++l) {
    a.pools.push_back({l, 1, part::bit(p), model.experts, ModelShape::slot_bytes(model.bytes(l, p))});
  }
  return a;
}

/// One pool over all layers, slots as large as the largest expert.
/// A budget that holds everything needs no stream slots; one below the stream slots is refused.
inline Allotment one_pool(const ModelShape& model, std::uint64_t budget_bytes, Precision p = Precision::full) {
  model.validate();
  std::uint64_t slot = 0;
  for (std::uint32_t l = 0; l < model.layers; ++l) {
    slot = std::max(slot, ModelShape::slot_bytes(model.bytes(l, p)));
  }
  const std::uint64_t all = std::uint64_t{model.layers} * model.experts;
  Allotment a;
  a.pools.push_back({0, model.layers, part::bit(p), static_cast<std::uint32_t>(all), slot});
  if (budget_bytes >= all * slot) return a;
  a.pools[0].slots = static_cast<std::uint32_t>(part::beside_stream(model, budget_bytes, slot) / slot);
  a.stream_slots = least_stream_slots;
  a.stream_slot_bytes = slot;
  return a;
}

/// One pool a layer, all layers alike; what does not divide goes to the shallowest layers.
/// A budget that holds everything needs no stream slots; one below the stream slots is refused.
inline Allotment pool_per_layer(const ModelShape& model, std::uint64_t budget_bytes, Precision p = Precision::full) {
  Allotment a = everything(model, p);
  if (budget_bytes >= a.bytes()) return a;
  std::uint64_t one_each = 0, largest = 0;
  for (Pool& pool : a.pools) {
    one_each += pool.slot_bytes;
    largest = std::max(largest, pool.slot_bytes);
  }
  std::uint64_t left = part::beside_stream(model, budget_bytes, largest);
  const auto each = static_cast<std::uint32_t>(left / one_each);
  left -= each * one_each;
  for (Pool& pool : a.pools) {
    pool.slots = each;
    if (left < pool.slot_bytes || pool.slots == model.experts) continue;
    ++pool.slots;
    left -= pool.slot_bytes;
  }
  a.stream_slots = least_stream_slots;
  a.stream_slot_bytes = largest;
  return a;
}

/// Stream slots only, as many as one layer can use: for policies that keep nothing.
inline Allotment stream_only(const ModelShape& model, std::uint64_t budget_bytes) {
  model.validate();
  Allotment a;
  a.stream_slot_bytes = ModelShape::slot_bytes(model.largest_bytes());
  part::beside_stream(model, budget_bytes, a.stream_slot_bytes);
  a.stream_slots = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(budget_bytes / a.stream_slot_bytes, std::max<std::uint32_t>(model.experts, 2)));
  return a;
}

}  // namespace ferry
