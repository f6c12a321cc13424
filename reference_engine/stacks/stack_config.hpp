/// @file
/// From the options of a command to the configuration of a stack: the same for real runs and for replays. For files that
/// make stacks; all others include stack_options.hpp, which compiles without any policy.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "ferry/stacks.hpp"
#include "stacks/stack_options.hpp"

namespace ferry::engine::part {

/// Calls `give(member of StackOptions, what it sets)` for each parameter that changes what a stack does: one line a
/// parameter, for setting it and for knowing who takes it.
template <class Stack, class Give>
void each_parameter(CoreConfig<Stack>& c, const Give& give) {
  using O = StackOptions;
  if constexpr (requires { c.precision.t1; }) give(&O::t1, c.precision.t1);
  if constexpr (requires { c.precision.t2; }) give(&O::t2, c.precision.t2);
  if constexpr (requires { c.precision.low_share_percent; }) give(&O::low_share_percent, c.precision.low_share_percent);
  if constexpr (requires { c.precision.low; }) give(&O::low_bits, c.precision.low);
  if constexpr (requires { c.precision.high; }) give(&O::high_bits, c.precision.high);
  if constexpr (requires { c.cache.fld; }) give(&O::cache_weights, c.cache);
  if constexpr (requires { c.router.alpha; }) give(&O::alpha, c.router.alpha);
  if constexpr (requires { c.router.max_loss; }) give(&O::max_loss, c.router.max_loss);
  if constexpr (requires { c.router.loss_rate; }) give(&O::loss_rate, c.router.loss_rate);
  if constexpr (requires { c.predictor.alpha; }) give(&O::alpha, c.predictor.alpha);
  if constexpr (requires { c.predictor.percentile; } && !std::is_base_of_v<stacks::PlainTopK, Stack>) {
    give(&O::percentile, c.predictor.percentile);
  }
  if constexpr (requires { c.predictor.depth; }) give(&O::depth, c.predictor.depth);
  if constexpr (requires { c.precision.low_on_miss; }) give(&O::low_on_miss, c.precision.low_on_miss);
  if constexpr (requires { c.cache.iterations; }) give(&O::window, c.cache.iterations);
  if constexpr (requires { c.cache.half_life; }) give(&O::half_life, c.cache.half_life);
  if constexpr (requires { c.scheduler.rule; }) give(&O::placement, c.scheduler.rule);
  using Cache = typename Stack::cache;
  if constexpr (ferry::part::caches<Cache>() && !std::is_same_v<Cache, StaticResidency>) {  // which never evicts
    give(&O::transient_prefill_rows, c.transient_prefill_rows);
  }
}

/// The parameters that a user may set, where a stack has them.
template <class Stack>
void set_parameters(CoreConfig<Stack>& c, const StackOptions& o) {
  check_parameters(o);
  each_parameter(c, [&o](auto member, auto& to) {
    using To = std::remove_reference_t<decltype(to)>;
    const auto& value = o.*member;
    if (!value) return;
    if constexpr (std::is_same_v<To, Precision>) {
      to = precision_of_bits(*value, member);
    } else if constexpr (std::is_same_v<To, PlacementRule>) {
      constexpr PlacementRule rules[] = {PlacementRule::device, PlacementRule::host, PlacementRule::two_pointer,
                                         PlacementRule::best_split};
      to = rules[static_cast<unsigned>(*value)];
    } else if constexpr (requires { to.fld; }) {
      to.lru = (*value)[0];
      to.lfu = (*value)[1];
      to.lhu = (*value)[2];
      to.fld = (*value)[3];
    } else {
      to = *value;
    }
  });
}

/// All but the layout. `copy_ns(bytes)`: what a copy of that many bytes costs.
template <class Stack, class CopyCost>
CoreConfig<Stack> basic_config(ModelShape model, const StackOptions& o, const CopyCost& copy_ns) {
  CoreConfig<Stack> c;
  c.model = std::move(model);
  c.model.max_rows = o.max_rows;
  c.model.validate();
  c.top_score_alpha = o.alpha.value_or(0.3F);
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    std::uint64_t largest = 0;
    for (const ExpertBytes& bytes : c.model.expert_bytes) largest = std::max(largest, bytes[p]);
    c.copy_ns[p] = copy_ns(largest);
  }
  set_parameters(c, o);
  return c;
}

/// The same for the parameters of a stack's own layout.
template <class Layout, class Give>
void each_layout_parameter(Layout& layout, const Give& give) {
  if constexpr (requires { layout.shallow; }) give(&StackOptions::shallow_layers, layout.shallow);
  if constexpr (requires { layout.low_percent; }) give(&StackOptions::low_pool_percent, layout.low_percent);
}

template <class Stack, class CopyCost>
CoreConfig<Stack> stack_config(const ModelShape& model, const StackOptions& o, const CopyCost& copy_ns) {
  auto c = basic_config<Stack>(model, o, copy_ns);
  const Budget budget(o.budget_bytes, o.stream_slots);
  if constexpr (requires { typename Stack::Layout; }) {
    typename Stack::Layout layout;
    each_layout_parameter(layout, [&o](auto member, std::uint32_t& to) { to = (o.*member).value_or(to); });
    if constexpr (requires { layout.keeps_precisions; }) layout.keeps_precisions = chooses_precisions(o);
    if constexpr (requires { layout.keeps_thresholds; }) layout.keeps_thresholds = o.t1 || o.t2;
    Stack::set_up(c, budget, layout);
  } else {
    Stack::set_up(c, budget);
  }
  if constexpr (ferry::part::caches<typename Stack::cache>()) {
    const PrecisionSet set(static_cast<std::uint8_t>(c.precision.precisions() & ~1U));
    if (o.pools == PoolChoice::per_layer) c.allotment = pool_per_layer(c.model, budget, set);
    if (o.pools == PoolChoice::one) c.allotment = one_pool(c.model, budget, set);
    if (o.pools == PoolChoice::shallow) {
      const std::uint32_t shallow = o.shallow_layers.value_or(stacks::ShallowLayers::Layout().shallow);
      c.allotment = shallow_favouring(c.model, budget, std::min<std::uint32_t>(shallow, c.model.layers), set);
    }
  }
  return c;
}

/// Every expert in its slot: what the others are compared with.
template <Precision p, class CopyCost>
CoreConfig<stacks::LruCache> resident_config(const ModelShape& model, const StackOptions& o, const CopyCost& copy_ns) {
  auto c = basic_config<stacks::LruCache>(model, o, copy_ns);
  c.precision.precision = p;
  c.allotment = everything(c.model, p);
  return c;
}

}  // namespace ferry::engine::part
