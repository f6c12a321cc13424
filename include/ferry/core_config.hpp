/// @file
/// What a Core is built from.
#pragma once
#include <string>

#include "ferry/allotment.hpp"
#include "ferry/concepts.hpp"

namespace ferry {

/// The model, its slots, and the policies with their parameters. Host memory, set-up only.
template <class Stack>
struct CoreConfig {
  ModelShape model;
  Allotment allotment;
  typename Stack::predictor predictor{};
  typename Stack::cache cache{};  ///< copied for each pool
  typename Stack::precision precision{};
  typename Stack::scheduler scheduler{};
  typename Stack::router router{};
  /// Prefill steps of more rows than this admit only to free slots, the rest streams through (invariant 8).
  std::uint32_t transient_prefill_rows = 0xffffffffU;
  /// What a copy of the largest expert costs, by Precision, for policies that weigh costs; 0: unknown.
  Nanoseconds copy_ns[precision_count] = {};

  /// Throws ConfigError, in one sentence, if these parts cannot work together.
  void validate() const {
    model.validate();
    static constexpr const char* names[] = {"skip", "INT2", "INT4", "INT8", "full"};
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      for (std::uint32_t l = 0; (precision.precisions() >> p & 1U) != 0 && l < model.layers; ++l) {
        if (model.bytes(l, static_cast<Precision>(p)) > 0) continue;
        throw ConfigError(std::string("the precision selector asks for ") + names[p] + " but layer " +
                          std::to_string(l) + " is not stored at it: store it, or choose another selector");
      }
    }
    if (allotment.stream_slots >= least_stream_slots) return;
    std::uint32_t whole_layers = 0;
    for (const Pool& p : allotment.pools) {
      if (p.slots >= std::uint32_t{p.layers} * model.experts) whole_layers += p.layers;
    }
    if (whole_layers < model.layers) {
      throw ConfigError("the allotment has " + std::to_string(allotment.stream_slots) +
                        " stream slots, expected at least " + std::to_string(least_stream_slots) +
                        " unless every expert of every layer has a slot");
    }
  }
};

}  // namespace ferry
