/// @file
/// How a budget of device memory becomes slots. Set-up only: nothing here runs on the hot path.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/error.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// Bytes of one expert, by Precision; 0: not stored at that precision.
using ExpertBytes = std::array<std::uint64_t, precision_count>;

/// The model as the library sees it: `{{.layers = 24, .experts = 60, ...}, {{0, 0, 0, 0, expert_bytes}}}`.
struct ModelShape : Shape {
  std::vector<ExpertBytes> expert_bytes = {};  ///< one for all layers, or one a layer
  /// [layers], where layers differ; empty: each layer has `experts` and `top_k`.
  std::vector<std::uint16_t> layer_experts = {}, layer_top_k = {};

  /// How many experts a layer has.
  [[nodiscard]] std::uint16_t experts_of(std::uint32_t layer) const {
    return layer_experts.empty() ? experts : layer_experts[layer];
  }
  /// How many of them each row uses.
  [[nodiscard]] std::uint16_t top_k_of(std::uint32_t layer) const {
    return layer_top_k.empty() ? top_k : layer_top_k[layer];
  }
  /// How many experts `count` layers from `first` on have together.
  [[nodiscard]] std::uint64_t experts_in(std::uint32_t first, std::uint32_t count) const {
    validate_layers("layer_experts", layer_experts, experts);
    std::uint64_t sum = 0;
    for (std::uint32_t l = first; l < first + count; ++l) sum += experts_of(l);
    return sum;
  }
  [[nodiscard]] std::uint64_t all_experts() const { return experts_in(0, layers); }  ///< in all layers together
  /// Bytes of one expert of a layer at a precision; 0: not stored at it.
  [[nodiscard]] std::uint64_t bytes(std::uint32_t layer, Precision p) const {
    return expert_bytes[expert_bytes.size() == 1 ? 0 : layer][static_cast<unsigned>(p)];
  }
  /// Whether a row's weights are divided by their sum; `validate` refuses a shape that does not say.
  [[nodiscard]] bool renormalises() const { return renormalise == Renormalise::yes; }
  /// Bytes of the smallest expert at a precision; 0: stored at it nowhere.
  [[nodiscard]] std::uint64_t least_bytes(Precision p) const {
    std::uint64_t least = 0;
    for (const ExpertBytes& b : expert_bytes) {
      const std::uint64_t bytes = b[static_cast<unsigned>(p)];
      if (bytes > 0 && (least == 0 || bytes < least)) least = bytes;
    }
    return least;
  }
  /// All routed experts at the model's own precision: what 100% of a budget means. Throws ConfigError without their bytes.
  [[nodiscard]] std::uint64_t all_bytes() const {
    validate_bytes();
    std::uint64_t sum = 0;
    for (std::uint32_t l = 0; l < layers; ++l) sum += slot_bytes(bytes(l, Precision::full)) * experts_of(l);
    return sum;
  }
  /// Slots start at cache lines, so that vector loads from them are aligned.
  [[nodiscard]] static std::uint64_t slot_bytes(std::uint64_t expert_bytes) { return (expert_bytes + 63) / 64 * 64; }

  /// Throws ConfigError, with what was expected, for a shape that no core can work with.
  void validate() const {
    auto need = [](bool good, const std::string& what) {
      if (!good) detail::fail<ConfigError>("model shape: " + what);
    };
    need(layers > 0 && experts > 0, "layers and experts must be at least 1");
    need(experts < no_expert, "at most 65534 experts a layer");
    need(top_k > 0 && top_k <= experts,
         "top_k is " + std::to_string(top_k) + ", expected 1 to " + std::to_string(experts) + " (experts)");
    need(max_rows > 0, "max_rows must be at least 1");
    need(renormalise != Renormalise::unset,
         "renormalise is not set, expected Renormalise::yes for a model that divides the weights of a row's experts by "
         "their sum (Mixtral), Renormalise::no for one that does not (Qwen1.5-MoE)");
    need(std::uint64_t{max_rows} * experts <= 0xffffffffULL, "max_rows * experts must fit in 32 bits");
    validate_bytes();
    validate_layers("layer_top_k", layer_top_k, top_k);
    for (std::uint32_t l = 0; l < layers; ++l) {
      need(top_k_of(l) <= experts_of(l), "layer " + std::to_string(l) + " has a top_k of " +
                                             std::to_string(top_k_of(l)) + ", expected 1 to " +
                                             std::to_string(experts_of(l)) + ", its experts: give each layer its own");
      need(bytes(l, Precision::full) > 0, "layer " + std::to_string(l) + " has no bytes at full precision");
      const std::uint64_t most = (std::uint64_t{1} << 62U) / (std::uint64_t{layers} * experts * precision_count);
      for (std::uint32_t p = 1; p < precision_count; ++p) {
        need(bytes(l, static_cast<Precision>(p)) < most, "layer " + std::to_string(l) + " has experts of " +
                                                             std::to_string(bytes(l, static_cast<Precision>(p))) +
                                                             " bytes: all of them must be fewer than 2^62");
      }
    }
  }

 private:
  void validate_bytes() const {
    validate_layers("layer_experts", layer_experts, experts);
    if (expert_bytes.size() == 1 || expert_bytes.size() == layers) return;
    detail::fail<ConfigError>("model shape: expert_bytes has " + std::to_string(expert_bytes.size()) +
                              " entries, expected 1 or " + std::to_string(layers) + " (layers)");
  }
  void validate_layers(const std::string& name, const std::vector<std::uint16_t>& of, std::uint16_t most) const {
    if (of.empty()) return;
    if (of.size() != layers) {
      detail::fail<ConfigError>("model shape: " + name + " has " + std::to_string(of.size()) +
                                " entries, expected none or " + std::to_string(layers) + " (layers)");
    }
    for (std::uint32_t l = 0; l < layers; ++l) {
      if (of[l] > 0 && of[l] <= most) continue;
      detail::fail<ConfigError>("model shape: " + name + "[" + std::to_string(l) + "] is " + std::to_string(of[l]) +
                                ", expected 1 to " + std::to_string(most) + ", the largest");
    }
  }
};

/// A number of equal slots for the experts of some adjacent layers. One CachePolicy instance looks after it.
struct Pool {
  std::uint16_t first_layer = 0, layers = 0;  ///< whose experts live here, from `first_layer` on
  std::uint8_t precisions = 0;                ///< bit 1 << p: these Precisions live here
  std::uint32_t slots = 0;                    ///< how many slots there are
  std::uint64_t slot_bytes = 0;               ///< bytes of each, a multiple of 64
};

/// Every slot of a device: pools first, then the stream slots, which hold an expert only while its layer runs
/// (layers that need more experts than fit, layers without slots, refused admissions).
struct Allotment {
  std::vector<Pool> pools;              ///< their slots are numbered one pool after the other
  std::uint32_t stream_slots = 0;       ///< numbered behind those of the pools
  std::uint64_t stream_slot_bytes = 0;  ///< bytes of each stream slot

  /// The slots of all pools and the stream slots.
  [[nodiscard]] std::uint32_t slots() const {
    std::uint32_t n = stream_slots;
    for (const Pool& p : pools) n += p.slots;
    return n;
  }
  /// Device memory that all of them take, in bytes.
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

/// How many slots can hold the smallest expert at a precision, whatever else they hold; 0 if there is none.
inline std::uint64_t slots_for(const Allotment& a, const ModelShape& model, Precision p) {
  const std::uint64_t bytes = model.least_bytes(p);
  std::uint64_t slots = 0;
  for (const Pool& pool : a.pools) slots += (pool.precisions >> static_cast<unsigned>(p) & 1U) != 0 ? pool.slots : 0;
  return bytes == 0 ? 0 : slots + (a.stream_slot_bytes >= bytes ? a.stream_slots : 0);
}

/// The smallest stream pool: with two slots one expert is copied while the other computes.
inline constexpr std::uint32_t least_stream_slots = 2;

/// As many stream slots as the experts that one layer can ask for: then no task waits until another is done
/// (Task::freed_by). An engine that computes a layer in one grouped kernel, behind all of its copies, needs that.
inline std::uint32_t unwaited_stream_slots(const ModelShape& model) {
  const std::uint64_t asked = std::uint64_t{model.max_rows} * model.top_k;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(std::min<std::uint64_t>(model.experts, asked), 2));
}

/// Device memory for experts. The stream slots come off the bytes first; where every expert has a slot, there are none.
struct Budget {
  std::uint64_t bytes = 0;                          ///< for all slots, in bytes
  std::uint32_t stream_slots = least_stream_slots;  ///< how many stream slots are taken off them

  /// So many bytes, and so many stream slots; an integer alone is a budget.
  constexpr Budget(std::uint64_t budget_bytes, std::uint32_t slots = least_stream_slots)
      : bytes(budget_bytes), stream_slots(slots) {}
};

namespace part {
constexpr std::uint8_t bit(Precision p) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(p));
}
}  // namespace part
/// Precisions that live in the same slots: `Precision::int4 | Precision::int2`.
struct PrecisionSet {
  std::uint8_t bits = 0;                                            ///< bit 1 << p for each Precision p
  constexpr PrecisionSet(Precision p) : bits(part::bit(p)) {}       ///< one precision alone
  constexpr explicit PrecisionSet(std::uint8_t set) : bits(set) {}  ///< from such bits
  /// Either set.
  friend constexpr PrecisionSet operator|(PrecisionSet a, PrecisionSet b) {
    return PrecisionSet(static_cast<std::uint8_t>(a.bits | b.bits));
  }
};
/// The set of two precisions.
constexpr PrecisionSet operator|(Precision a, Precision b) {
  return PrecisionSet(a) | PrecisionSet(b);
}

namespace part {
/// A slot for any of these precisions of a layer. Throws ConfigError if its experts are stored at none of them.
inline std::uint64_t slot_for(const ModelShape& model, std::uint32_t layer, PrecisionSet set) {
  std::uint64_t bytes = 0;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((1U << p & set.bits) != 0) bytes = std::max(bytes, model.bytes(layer, static_cast<Precision>(p)));
  }
  if (bytes > 0) return ModelShape::slot_bytes(bytes);
  std::string names;
  for (const auto& [p, name] : {std::pair{Precision::int2, "INT2"}, std::pair{Precision::int4, "INT4"},
                                std::pair{Precision::int8, "INT8"}, std::pair{Precision::full, "full precision"}}) {
    if ((1U << static_cast<unsigned>(p) & set.bits) != 0) names += (names.empty() ? "" : " or ") + std::string(name);
  }
  detail::fail<ConfigError>("layer " + std::to_string(layer) + " has no experts in " + names +
                            ", for which slots were asked: expected a precision that the model is stored in");
}

/// Bytes that are left for pools beside the stream pool, or a refusal that names what would be enough.
inline std::uint64_t beside_stream(const ModelShape& model, Budget budget, std::uint64_t stream_slot) {
  if (budget.stream_slots < least_stream_slots) {
    detail::fail<ConfigError>("a budget has " + std::to_string(budget.stream_slots) +
                              " stream slots, expected at least " + std::to_string(least_stream_slots));
  }
  const std::uint64_t stream = budget.stream_slots * stream_slot;
  if (budget.bytes / stream_slot < budget.stream_slots) {  // the product may not fit
    detail::fail<ConfigError>(
        "budget of " + std::to_string(budget.bytes) + " bytes is too small: at least " + std::to_string(stream) +
        " bytes are needed, " + std::to_string(budget.stream_slots) +
        " slots of the largest expert (all experts together: " + std::to_string(model.all_bytes()) + " bytes)");
  }
  return budget.bytes - stream;
}

/// Gives one slot after another to pools `first` to `last`, round by round, until `left` or the pools are spent.
/// `most`: how many slots each pool may have.
inline void deal(std::vector<Pool>& pools, std::size_t first, std::size_t last, const std::vector<std::uint32_t>& most,
                 std::uint64_t& left) {
  for (std::size_t p = first; p < last; ++p) pools[p].slots = 0;
  for (;;) {
    std::uint64_t round = 0;
    std::uint32_t each = 0;  // slots for each, until the first pool that wants more is full
    for (std::size_t p = first; p < last; ++p) {
      const std::uint32_t wants = most[p] - pools[p].slots;
      if (wants == 0) continue;
      each = round == 0 ? wants : std::min(each, wants);
      round += pools[p].slot_bytes;
    }
    if (round == 0) return;
    each = static_cast<std::uint32_t>(std::min<std::uint64_t>(each, left / round));
    if (each == 0) break;
    for (std::size_t p = first; p < last; ++p) pools[p].slots += pools[p].slots < most[p] ? each : 0;
    left -= each * round;
  }
  for (std::size_t p = first; p < last; ++p) {
    if (left < pools[p].slot_bytes || pools[p].slots == most[p]) continue;
    ++pools[p].slots;
    left -= pools[p].slot_bytes;
  }
}
}  // namespace part

/// A pool for each layer with room for all its variants: nothing is ever evicted, no stream slots.
inline Allotment everything(const ModelShape& model, PrecisionSet set = Precision::full) {
  model.validate();
  Allotment a;
  const auto variants = static_cast<std::uint32_t>(std::popcount(set.bits));
  for (std::uint16_t l = 0; l < model.layers; ++l) {
    a.pools.push_back({l, 1, set.bits, variants * model.experts_of(l), part::slot_for(model, l, set)});
  }
  return a;
}

/// One pool over all layers, slots as large as the largest expert.
/// A budget that holds everything needs no stream slots; one below the stream slots is refused.
inline Allotment one_pool(const ModelShape& model, Budget budget, PrecisionSet set = Precision::full) {
  model.validate();
  std::uint64_t slot = 0;
  for (std::uint32_t l = 0; l < model.layers; ++l) slot = std::max(slot, part::slot_for(model, l, set));
  const std::uint64_t all = model.all_experts() * static_cast<std::uint64_t>(std::popcount(set.bits));
  Allotment a{.pools = {{0, model.layers, set.bits, static_cast<std::uint32_t>(all), slot}}};
  if (budget.bytes >= all * slot) return a;
  a.pools[0].slots = static_cast<std::uint32_t>(std::min(all, part::beside_stream(model, budget, slot) / slot));
  a.stream_slots = budget.stream_slots;
  a.stream_slot_bytes = slot;
  return a;
}

/// One pool a layer. In order, each of the first `shallow` layers gets a slot for every expert; the others share equally what
/// is left, and what cannot be divided goes to the shallowest of them.
///
/// Source: Fate, section 4.4: with N slots in all, E experts a layer, L layers and boundary s: N <= s E fills layers
/// 0, 1, ... in order, otherwise each deep layer has floor((N - s E) / (L - s)). Ours: the remainder, the stream slots
/// that come off the budget first, layers of unequal expert sizes (dealt by bytes).
/// A budget that holds everything needs no stream slots; one below the stream slots is refused.
///
/// `room_for_prefetch`: so many slots of the largest size, or all that they can hold, are the deep layers' first. Without slots
/// a layer has nowhere to prefetch to; the paper keeps prefetched experts beside its cache. Where the deep layers then get
/// fewer than top-k slots each (or than `room_for_prefetch`, if that is less), they share one pool.
inline Allotment shallow_favouring(const ModelShape& model, Budget budget, std::uint32_t shallow,
                                   PrecisionSet set = Precision::full, std::uint32_t room_for_prefetch = 0) {
  if (shallow > model.layers) {
    detail::fail<ConfigError>("shallow-favouring allotment: " + std::to_string(shallow) +
                              " shallow layers, but the model has " + std::to_string(model.layers) + " in all");
  }
  Allotment a = everything(model, set);
  if (budget.bytes >= a.bytes()) return a;
  std::vector<std::uint32_t> whole, most;  // of each pool: a slot an expert; one for each of its variants
  for (const Pool& pool : a.pools) {
    whole.push_back(model.experts_of(pool.first_layer));
    most.push_back(pool.slots);
  }
  for (const Pool& pool : a.pools) a.stream_slot_bytes = std::max(a.stream_slot_bytes, pool.slot_bytes);
  a.stream_slots = budget.stream_slots;
  std::uint64_t left = part::beside_stream(model, budget, a.stream_slot_bytes), most_deep = 0;
  for (std::size_t l = shallow; l < a.pools.size(); ++l) most_deep += whole[l] * a.pools[l].slot_bytes;
  const std::uint64_t room = std::min({left, most_deep, room_for_prefetch * a.stream_slot_bytes});
  left -= room;
  bool full = true;
  for (std::uint32_t l = 0; l < shallow; ++l) {
    Pool& pool = a.pools[l];
    pool.slots = full ? static_cast<std::uint32_t>(std::min<std::uint64_t>(whole[l], left / pool.slot_bytes)) : 0;
    left -= pool.slots * pool.slot_bytes;
    full = full && pool.slots == whole[l];
  }
  left = full ? left + room : room;
  part::deal(a.pools, shallow, a.pools.size(), whole, left);
  const bool all_whole = std::equal(a.pools.begin() + shallow, a.pools.end(), whole.begin() + shallow,
                                    [](const Pool& p, std::uint32_t w) { return p.slots >= w; });
  if (full && all_whole) {  // what is left is for their other variants
    for (const Pool& pool : a.pools) left += pool.slots * pool.slot_bytes;
    part::deal(a.pools, 0, a.pools.size(), most, left);
    return a;
  }
  if (room == 0 || a.pools.back().slots >= std::min<std::uint32_t>(room_for_prefetch, model.top_k)) return a;
  Pool together{static_cast<std::uint16_t>(shallow), static_cast<std::uint16_t>(model.layers - shallow), set.bits, 0,
                0};
  for (std::size_t l = shallow; l < a.pools.size(); ++l) {
    left += a.pools[l].slots * a.pools[l].slot_bytes;
    together.slot_bytes = std::max(together.slot_bytes, a.pools[l].slot_bytes);
  }
  together.slots = static_cast<std::uint32_t>(left / together.slot_bytes);
  a.pools[shallow] = together;
  a.pools.resize(shallow + 1U);
  return a;
}

/// One pool a layer, all layers alike; what does not divide goes to the shallowest layers.
/// A budget that holds everything needs no stream slots; one below the stream slots is refused.
inline Allotment pool_per_layer(const ModelShape& model, Budget budget, PrecisionSet set = Precision::full) {
  return shallow_favouring(model, budget, 0, set);
}

/// Two pools over all layers: one for experts at high precision, one for low, which gets `low_percent` of the bytes.
/// Source: HOBBIT, section 3.4: separate caches, the high one typically the larger; the share is ours.
/// What the high pool cannot use goes to the low one. A budget that holds everything at both precisions needs no stream
/// slots; one below the stream slots is refused.
inline Allotment high_low_pools(const ModelShape& model, Budget budget, Precision high, Precision low,
                                std::uint32_t low_percent = 10) {
  if (low >= high || low == Precision::skip || low_percent > 50) {
    detail::fail<ConfigError>(
        "two pools by precision: the low one must be less precise than the high one, and have at most 50% of"
        " the bytes, not " +
        std::to_string(low_percent) + "%");
  }
  Allotment a = one_pool(model, ~std::uint64_t{0}, high);
  Pool cheap = one_pool(model, ~std::uint64_t{0}, low).pools[0];
  Pool& dear = a.pools[0];
  if (budget.bytes >= dear.slots * dear.slot_bytes + cheap.slots * cheap.slot_bytes) {
    a.pools.push_back(cheap);
    return a;
  }
  a.stream_slots = budget.stream_slots;
  a.stream_slot_bytes = dear.slot_bytes;
  const std::uint64_t left = part::beside_stream(model, budget, a.stream_slot_bytes);
  const std::uint64_t wish = std::min(left / 100 * low_percent / cheap.slot_bytes, std::uint64_t{cheap.slots});
  dear.slots = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(dear.slots, (left - wish * cheap.slot_bytes) / dear.slot_bytes));
  cheap.slots = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(cheap.slots, (left - dear.slots * dear.slot_bytes) / cheap.slot_bytes));
  a.pools.push_back(cheap);
  return a;
}

/// Stream slots only, as many as one layer can use: for policies that keep nothing.
inline Allotment stream_only(const ModelShape& model, Budget budget, PrecisionSet set = Precision::full) {
  model.validate();
  Allotment a;
  for (std::uint32_t l = 0; l < model.layers; ++l) {
    a.stream_slot_bytes = std::max(a.stream_slot_bytes, part::slot_for(model, l, set));
  }
  part::beside_stream(model, budget, a.stream_slot_bytes);
  a.stream_slots = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(budget.bytes / a.stream_slot_bytes, std::max<std::uint32_t>(model.experts, 2)));
  return a;
}

}  // namespace ferry::inline FERRY_ABI
