/// @file
/// What a Core is built from.
#pragma once
#include <algorithm>
#include <string>

#include "ferry/allotment.hpp"
#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// What a core is built from beside its policies. Host memory, set-up only.
struct CoreSettings {
  ModelShape model;     ///< what the model is like
  Allotment allotment;  ///< which slots there are
  /// Prefill steps of more rows than this admit experts only to free slots; the others stream through (invariant 8).
  std::uint32_t transient_prefill_rows = 0xffffffffU;
  /// By this alpha, misses of top-score and low-score experts are counted apart (Outcomes::top_requests); negative: not.
  float top_score_alpha = -1.0F;
  /// What a copy of the largest expert costs, by Precision, for policies that weigh costs; 0: unknown.
  Nanoseconds copy_ns[precision_count] = {};
  /// What else is known of the machine, for placements that weigh it. The core sets `link_ns` and `chunk_ns`, and learns
  /// `host_ns` and `host_row_ns` from what layers take (Times::host), unless one of these two is given.
  LayerCosts costs;
};

/// The model, its slots, and the policies with their parameters.
template <class Stack>
struct CoreConfig : CoreSettings {
  typename Stack::predictor predictor{};  ///< with its parameters
  typename Stack::cache cache{};          ///< copied for each pool
  typename Stack::precision precision{};  ///< with its parameters
  typename Stack::scheduler scheduler{};  ///< with its parameters: limit, order and placement
  typename Stack::router router{};        ///< with its parameters

  /// Throws ConfigError, in one sentence, if these parts cannot work together.
  void validate() const {
    model.validate();
    validate_times();
    if ((precision.precisions() & ~1U) == 0) {
      detail::fail<ConfigError>("the precision selector names no precision, expected those that it chooses");
    }
    // Beyond the last layer lie those of the next step.
    const std::uint32_t depth = part::depth_of(predictor), most = std::max<std::uint32_t>(model.layers, 4);
    if (depth > most) {
      detail::fail<ConfigError>("the predictor's depth is " + std::to_string(depth) + " layers, expected at most " +
                                std::to_string(most));
    }
    static constexpr const char* names[] = {"skip", "INT2", "INT4", "INT8", "full"};
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      for (std::uint32_t l = 0; selectable(p) && l < model.layers; ++l) {
        if (model.bytes(l, static_cast<Precision>(p)) > 0) continue;
        detail::fail<ConfigError>(std::string("the precision selector asks for ") + names[p] + " but layer " +
                                  std::to_string(l) + " is not stored at it: store it, or choose another selector");
      }
    }
    std::uint64_t largest = 0;  // of what may have to go through a stream slot
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      for (std::uint32_t p = 1; p < precision_count; ++p) {
        if (selectable(p)) largest = std::max(largest, model.bytes(l, static_cast<Precision>(p)));
      }
    }
    for (const Pool& pool : allotment.pools) validate_pool(pool);
    validate_apart();
    for (std::uint32_t p = 1; p < precision_count && !allotment.pools.empty(); ++p) {
      bool has = !selectable(p);
      for (const Pool& pool : allotment.pools) has = has || (pool.precisions >> p & 1U) != 0;
      if (has) continue;
      detail::fail<ConfigError>(std::string("the precision selector asks for ") + names[p] +
                                " but no pool holds it: give the allotment all precisions that it may choose");
    }
    if (allotment.stream_slots > 0 && allotment.stream_slot_bytes < largest) {
      detail::fail<ConfigError>("stream slots have " + std::to_string(allotment.stream_slot_bytes) +
                                " bytes, expected at least " + std::to_string(largest) + " for the largest expert");
    }
    if (allotment.stream_slots < least_stream_slots && !everything_has_a_slot()) {
      detail::fail<ConfigError>("the allotment has " + std::to_string(allotment.stream_slots) +
                                " stream slots, expected at least " + std::to_string(least_stream_slots) +
                                " unless every expert of every layer has a slot");
    }
  }

 private:
  void validate_times() const {
    const auto check = [](const char* name, Nanoseconds ns) {
      if (ns >= 0) return;
      detail::fail<ConfigError>(std::string(name) + " is " + std::to_string(ns) +
                                " ns, expected a time, or 0 if it is not known");
    };
    for (std::uint32_t p = 0; p < precision_count; ++p) {
      check("copy_ns", copy_ns[p]);
      check("costs.device_ns", costs.device_ns[p]);
      check("costs.host_ns", costs.host_ns[p]);
    }
    check("costs.host_row_ns", costs.host_row_ns);
    check("costs.host_start_ns", costs.host_start_ns);
  }

  [[nodiscard]] bool selectable(std::uint32_t p) const { return (1U << p & precision.precisions()) != 0; }

  void validate_pool(const Pool& pool) const {
    const std::string name = "the pool from layer " + std::to_string(pool.first_layer);
    if (pool.layers == 0 || pool.first_layer + pool.layers > model.layers) {
      detail::fail<ConfigError>(name + " has " + std::to_string(pool.layers) + " layers, but the model has " +
                                std::to_string(model.layers) + " in all");
    }
    if (!part::caches<typename Stack::cache>() && pool.slots > 0) {
      detail::fail<ConfigError>(name + " has slots, but this cache policy keeps nothing: use ferry::stream_only");
    }
    for (std::uint32_t l = pool.first_layer; l < std::uint32_t{pool.first_layer} + pool.layers; ++l) {
      for (std::uint32_t p = 1; p < precision_count; ++p) {
        const std::uint64_t bytes = model.bytes(l, static_cast<Precision>(p));
        if ((pool.precisions >> p & 1U) == 0 || bytes <= pool.slot_bytes) continue;
        detail::fail<ConfigError>(name + " has slots of " + std::to_string(pool.slot_bytes) +
                                  " bytes, but an expert of layer " + std::to_string(l) + " takes " +
                                  std::to_string(bytes));
      }
    }
  }

  /// An expert at a precision lives in one pool.
  void validate_apart() const {
    for (std::size_t i = 0; i < allotment.pools.size(); ++i) {
      for (std::size_t j = i + 1; j < allotment.pools.size(); ++j) {
        const Pool &a = allotment.pools[i], &b = allotment.pools[j];
        const bool apart = a.first_layer >= std::uint32_t{b.first_layer} + b.layers ||
                           b.first_layer >= std::uint32_t{a.first_layer} + a.layers;
        if (apart || (a.precisions & b.precisions) == 0) continue;
        detail::fail<ConfigError>("pools " + std::to_string(i) + " and " + std::to_string(j) +
                                  " both have slots for layer " +
                                  std::to_string(std::max(a.first_layer, b.first_layer)) +
                                  " at one precision, expected one pool for each layer and precision");
      }
    }
  }

  [[nodiscard]] bool everything_has_a_slot() const {
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      for (std::uint32_t p = 1; p < precision_count; ++p) {
        if (!selectable(p)) continue;
        bool has = false;
        for (const Pool& pool : allotment.pools) {
          const bool here = l >= pool.first_layer && l < std::uint32_t{pool.first_layer} + pool.layers;
          std::uint32_t variants = 0;
          for (std::uint32_t q = 1; q < precision_count; ++q) variants += pool.precisions >> q & 1U;
          has = has || (here && (pool.precisions >> p & 1U) != 0 &&
                        pool.slots >= model.experts_in(pool.first_layer, pool.layers) * variants);
        }
        if (!has) return false;
      }
    }
    return true;
  }
};

}  // namespace ferry::inline FERRY_ABI
