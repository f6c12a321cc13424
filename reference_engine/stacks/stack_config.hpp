/// @file
/// From the options of a command to the configuration of a stack: the same for real runs and for replays.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ferry/stacks.hpp"

namespace ferry::engine {

/// How the slots of a budget are laid out.
enum class PoolChoice {
  stack,      ///< as the stack's own paper has it
  per_layer,  ///< a pool for each layer
  one,        ///< one pool over all layers
  shallow     ///< a pool for each layer, the shallow ones whole
};

/// Which stack, with how much memory, and what a user may set of it.
struct StackOptions {
  std::string stack = "lru";
  PoolChoice pools = PoolChoice::stack;
  std::uint64_t budget_bytes = 0;  ///< ignored by stacks that keep everything
  std::uint32_t max_rows = 128;    ///< largest prefill chunk or batch

  // Parameters of policies, for the stacks that have them. Unset: the paper's.
  std::optional<float> t1, t2;  ///< ImportanceThresholds
  std::optional<float> alpha;   ///< ExpertCacheRouter and PartialHidden
  std::optional<std::uint32_t> low_share_percent, shallow_layers, percentile, depth;
  /// 2, 4 or 8: what ImportanceThresholds and PopularityHybrid shrink to, and what they leave important experts in.
  std::optional<std::uint32_t> low_bits, high_bits;
  std::optional<std::array<std::uint32_t, 4>> cache_weights;  ///< Multidimensional: lru, lfu, lhu, fld, in thousandths
};

/// What is known of a stack without building it.
struct StackInfo {
  std::string name;
  const char* what = "";          ///< one line for help
  bool keeps_everything = false;  ///< needs every expert in its budget
  bool chooses_pools = false;     ///< has a cache, whose pools may be laid out otherwise
  bool lossless = false;          ///< computes what the resident model of the same precision computes, bit for bit
  PrecisionSet precisions = Precision::full;  ///< of experts that it copies, with the options' defaults
  std::vector<std::string> parameters;        ///< of StackOptions that it takes, as the command spells them
};

/// All stacks, in the order in which help lists them.
const std::vector<StackInfo>& all_stacks();

/// Throws InputError for an unknown name, and suggests the nearest.
const StackInfo& find_stack(const std::string& name);

/// Throws InputError, naming `option`, for other numbers than 2, 4 and 8.
Precision precision_of_bits(std::uint32_t bits, const char* option = "--low-bits");

/// Throws ConfigError unless `low` has fewer bits than `high`.
void check_pair(Precision low, Precision high);

/// What a model must have its experts in for a stack with these options, beside its own precision.
PrecisionSet precisions_for(const StackOptions& options);

namespace part {

/// The parameters that a user may set, where a stack has them.
template <class Config>
void set_parameters(Config& c, const StackOptions& o) {
  if constexpr (requires { c.precision.t1; }) {
    c.precision.t1 = o.t1.value_or(c.precision.t1);
    c.precision.t2 = o.t2.value_or(c.precision.t2);
  }
  if constexpr (requires { c.precision.low_share_percent; }) {
    c.precision.low_share_percent = o.low_share_percent.value_or(c.precision.low_share_percent);
  }
  if constexpr (requires { c.precision.low; }) {
    if (o.low_bits) c.precision.low = precision_of_bits(*o.low_bits);
    if (o.high_bits) c.precision.high = precision_of_bits(*o.high_bits, "--high-bits");
    check_pair(c.precision.low, c.precision.high);
  }
  if constexpr (requires { c.cache.fld; }) {
    if (o.cache_weights) {
      c.cache.lru = (*o.cache_weights)[0];
      c.cache.lfu = (*o.cache_weights)[1];
      c.cache.lhu = (*o.cache_weights)[2];
      c.cache.fld = (*o.cache_weights)[3];
    }
  }
  if constexpr (requires { c.router.alpha; }) c.router.alpha = o.alpha.value_or(c.router.alpha);
  if constexpr (requires { c.predictor.alpha; }) c.predictor.alpha = o.alpha.value_or(c.predictor.alpha);
  if constexpr (requires { c.predictor.percentile; }) {
    c.predictor.percentile = o.percentile.value_or(c.predictor.percentile);
  }
  if constexpr (requires { c.predictor.depth; }) c.predictor.depth = o.depth.value_or(c.predictor.depth);
}

/// All but the layout. `copy_ns(bytes)`: what a copy of that many bytes costs.
template <class Stack, class CopyCost>
CoreConfig<Stack> basic_config(ModelShape model, bool renormalise, const StackOptions& o, const CopyCost& copy_ns) {
  CoreConfig<Stack> c;
  c.model = std::move(model);
  c.model.max_rows = o.max_rows;
  c.model.renormalise = renormalise_if(renormalise);
  c.top_score_alpha = o.alpha.value_or(0.3F);
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    c.copy_ns[p] = copy_ns(c.model.bytes(0, static_cast<Precision>(p)));
  }
  set_parameters(c, o);
  return c;
}

template <class Stack, class CopyCost>
CoreConfig<Stack> stack_config(const ModelShape& model, bool renormalise, const StackOptions& o,
                               const CopyCost& copy_ns) {
  auto c = basic_config<Stack>(model, renormalise, o, copy_ns);
  if constexpr (requires { Stack::set_up(c, o.budget_bytes, 4U); }) {
    Stack::set_up(c, o.budget_bytes, o.shallow_layers.value_or(4));
  } else {
    Stack::set_up(c, o.budget_bytes);
  }
  if constexpr (ferry::part::caches<typename Stack::cache>()) {
    const PrecisionSet set(static_cast<std::uint8_t>(c.precision.precisions() & ~1U));
    if (o.pools == PoolChoice::per_layer) c.allotment = pool_per_layer(c.model, o.budget_bytes, set);
    if (o.pools == PoolChoice::one) c.allotment = one_pool(c.model, o.budget_bytes, set);
    if (o.pools == PoolChoice::shallow) {
      const std::uint32_t shallow = std::min<std::uint32_t>(o.shallow_layers.value_or(4), c.model.layers);
      c.allotment = shallow_favouring(c.model, o.budget_bytes, shallow, set);
    }
  }
  return c;
}

/// Every expert in its slot: what the others are compared with.
template <Precision p, class CopyCost>
CoreConfig<stacks::LruCache> resident_config(const ModelShape& model, bool renormalise, const StackOptions& o,
                                             const CopyCost& copy_ns) {
  auto c = basic_config<stacks::LruCache>(model, renormalise, o, copy_ns);
  c.precision.precision = p;
  c.allotment = everything(c.model, p);
  return c;
}

}  // namespace part

template <class Stack>
StackInfo stack_info(const char* name, const char* what, bool lossless) {
  using Config = CoreConfig<Stack>;
  StackInfo info;
  info.name = name;
  info.what = what;
  info.lossless = lossless;
  info.chooses_pools = ferry::part::caches<typename Stack::cache>();
  info.precisions = PrecisionSet(static_cast<std::uint8_t>(typename Stack::precision{}.precisions() & ~1U));
  auto takes = [&](bool has, const char* parameter) {
    if (has) info.parameters.emplace_back(parameter);
  };
  takes(
      requires(Config c) { c.precision.t1; }, "--t1");
  takes(
      requires(Config c) { c.precision.t2; }, "--t2");
  takes(
      requires(Config c) { c.precision.low_share_percent; }, "--low-share");
  takes(
      requires(Config c) { c.precision.low; }, "--low-bits");
  takes(
      requires(Config c) { c.precision.high; }, "--high-bits");
  takes(
      requires(Config c) { c.cache.fld; }, "--cache-weights");
  takes(
      requires(Config c) { c.router.alpha; } || requires(Config c) { c.predictor.alpha; }, "--alpha");
  takes(
      requires(Config c) { c.predictor.percentile; }, "--percentile");
  takes(
      requires(Config c) { c.predictor.depth; }, "--depth");
  takes(
      requires(Config c) { Stack::set_up(c, 0, 4U); }, "--shallow-layers");
  return info;
}

template <Precision p>
StackInfo resident_info(const char* name, const char* what) {
  StackInfo info;
  info.name = name;
  info.what = what;
  info.keeps_everything = info.lossless = true;
  info.precisions = p;
  return info;
}

}  // namespace ferry::engine
