/// @file
/// A named stack with its options, of which pipelines can be made: where names become types. Whatever is made of it
/// (runs, simulations) compiles without any policy.
#pragma once
#include <functional>
#include <memory>

#include "ferry/any_pipeline.hpp"
#include "stacks/clairvoyance.hpp"
#include "stacks/stack_options.hpp"

namespace ferry::engine {

/// What a copy of so many bytes costs.
using CopyCost = std::function<Nanoseconds(std::uint64_t bytes)>;

/// What will be asked for, in order; `starts`: where each layer of each step begins, and the end. Outlives what is made with
/// it.
struct Future {
  View<const ExpertId> asked;
  View<const std::uint32_t> starts;
};

struct ConfiguredStack {
  std::unique_ptr<AnyConfig> config;
  bool preloads = false;  ///< its slots are to be filled before the first step
};

/// The stack that the options name, laid out in their budget. `model` needs no `max_rows`. `future`: for one that knows
/// it. Throws InputError for an unknown stack, ConfigError for what cannot work, NoFuture.
ConfiguredStack configure_stack(const ModelShape& model, const StackOptions& options, const CopyCost& copy_cost,
                                Clairvoyance knows = Clairvoyance::none, const Future& future = {});

}  // namespace ferry::engine
