#include "stacks/stack_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ferry/error.hpp"
#include "stacks/parameters.hpp"
#include "support/errors.hpp"
#include "support/suggest.hpp"

namespace ferry::engine {
namespace {

using O = StackOptions;

StackInfo resident(const char* name, const char* what, Precision p) {
  return {name, what, true, true, p, {}};
}

using Members = std::vector<ParameterMember>;

/// The parameters of a stack that caches experts: those that all such stacks have, and its own.
Members caching(const Members& own, const Members& more = {}) {
  Members all = {&O::pools, &O::transient_prefill_rows};
  all.insert(all.end(), own.begin(), own.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// A stack that copies experts at the model's own precision, and routes to those that the gate chose.
StackInfo lossless(const char* name, const char* what, std::vector<ParameterMember> parameters) {
  return {name, what, true, false, Precision::full, std::move(parameters)};
}

/// The same at INT4.
StackInfo packed(const char* name, const char* what, std::vector<ParameterMember> parameters) {
  return {name, what, true, false, Precision::int4, std::move(parameters)};
}

StackInfo lossy(const char* name, const char* what, PrecisionSet precisions, std::vector<ParameterMember> parameters) {
  return {name, what, false, false, precisions, std::move(parameters)};
}

StackInfo full_where_all_fits(StackInfo info) {
  info.full_where_all_fits = true;
  return info;
}

// stack_table.hpp has the types of these stacks. A test checks that both agree.
std::vector<StackInfo> make_stacks() {
  const PrecisionSet own = Precision::full, fate = Precision::int4 | Precision::int2,
                     hobbit = Precision::full | Precision::int4;
  const Members thresholds = {&O::t1, &O::t2, &O::low_bits, &O::high_bits, &O::low_pool_percent};
  return {
      resident("resident", "every expert on the device, as the checkpoint has it", Precision::full),
      resident("resident-int8", "every expert on the device in INT8", Precision::int8),
      resident("resident-int4", "every expert on the device in INT4", Precision::int4),
      resident("resident-int2", "every expert on the device in INT2", Precision::int2),
      lossless("on-demand", "each expert is copied when needed, and forgotten", {}),
      lossless("layer-stream", "whole layers, one ahead (DeepSpeed-Inference)", caching({})),
      lossless("lru", "least recently used, no prefetch (llama.cpp)", caching({})),
      packed("lru-int4", "the same with experts in INT4", caching({})),
      lossless("llama-cache", "lru over all layers, passed by in steps of many rows", caching({})),
      lossless("cross-layer-lru", "lru, and the next layer's gate predicts", caching({&O::percentile})),
      lossless("mixtral-offloading", "lru a layer, and the top-k of the next gate", caching({})),
      lossless("moe-infinity", "activation matrices of earlier requests, LFU", caching({&O::depth})),
      full_where_all_fits(
          packed("activation-path", "activation paths with Fate's cache (EAP), INT4", caching({&O::shallow_layers}))),
      lossless("activation-path-full", "the same at the model's own precision", caching({&O::shallow_layers})),
      lossless("static-host", "a fixed part on the device, the host computes the rest", {&O::pools}),
      packed("static-host-int4", "the same with experts in INT4", {&O::pools}),
      lossless("hybrimoe", "averaged scores, misses split between link and host", caching({&O::placement})),

      lossless("ferry", "ours: nobody waits, the host computes and copies follow", caching({&O::half_life})),
      packed("ferry-int4", "the same with experts in INT4", caching({&O::half_life})),
      lossy("ferry-lossy", "and within --max-loss what matters least is not run", Precision::int4,
            caching({&O::max_loss, &O::loss_rate, &O::half_life})),
      lossless("ferry-device", "ours without a host: learns what is used again soon", caching({&O::half_life})),

      lossless("fate+prefetch", "Fate's prefetch alone", caching({&O::percentile})),
      lossless("fate+cache", "its prefetch and its cache", caching({&O::percentile, &O::shallow_layers})),
      full_where_all_fits(lossy("fate", "Fate: prefetch, shallow-favouring ARC, INT4 and INT2", fate,
                                caching({&O::low_share_percent, &O::low_bits, &O::high_bits, &O::low_on_miss,
                                         &O::percentile, &O::shallow_layers}))),

      lossy("hobbit+dynamic", "HOBBIT's precision by importance, with LRU", hobbit, caching(thresholds)),
      lossy("hobbit+prefetch", "and its adaptive prefetch", hobbit, caching(thresholds, {&O::depth})),
      lossy("hobbit", "HOBBIT: and its multidimensional cache", hobbit,
            caching(thresholds, {&O::cache_weights, &O::depth})),
      lossy("hobbit-cooperative", "the same, the host computes what is missing", hobbit,
            caching(thresholds, {&O::cache_weights, &O::depth})),

      lossless("importance+ce", "eviction by recent scores", caching({&O::window})),
      lossy("importance+er", "and low-score experts replaced by resident ones", own, caching({&O::alpha, &O::window})),
      lossy("importance+pre", "and top-score experts prefetched", own, caching({&O::alpha, &O::window})),
      lossy("importance-driven", "all of it: and misses shared with the host", own,
            caching({&O::alpha, &O::window, &O::placement})),
      lossy("importance-balanced", "the same, shared by the best split", own,
            caching({&O::alpha, &O::window, &O::placement})),
  };
}

struct PrecisionPair {
  Precision low, high;
};

/// The low and the high precision of a stack that has two; none for others.
std::optional<PrecisionPair> precision_pair(const StackOptions& o) {
  if (!takes_parameter(o.stack, &O::low_bits, o.pools)) return {};
  const unsigned set = find_stack(o.stack).precisions.bits;
  return PrecisionPair{
      o.low_bits ? precision_of_bits(*o.low_bits) : static_cast<Precision>(std::countr_zero(set)),
      o.high_bits ? precision_of_bits(*o.high_bits, &O::high_bits) : static_cast<Precision>(std::bit_width(set) - 1)};
}

}  // namespace

const std::vector<StackInfo>& all_stacks() {
  static const std::vector<StackInfo> all = make_stacks();
  return all;
}

const StackInfo& find_stack(const std::string& name) {
  std::vector<std::string> names;
  for (const StackInfo& s : all_stacks()) {
    if (name == s.name) return s;
    names.push_back(s.name);
  }
  throw InputError(unknown_name("stack", name, names));
}

bool takes_parameter(const std::string& stack, const ParameterMember& parameter, PoolChoice pools) {
  const std::vector<ParameterMember>& own = find_stack(stack).parameters;
  auto takes = [&](const ParameterMember& p) { return std::find(own.begin(), own.end(), p) != own.end(); };
  // Pools that the user chooses replace the stack's own and their parameters.
  if (pools != PoolChoice::stack && parameter == ParameterMember(&O::low_pool_percent)) return false;
  const bool replaced = parameter == ParameterMember(&O::shallow_layers) && pools != PoolChoice::stack;
  return replaced ? pools == PoolChoice::shallow && takes(&O::pools) : takes(parameter);
}

Precision precision_of_bits(std::uint32_t bits, std::optional<std::uint32_t> StackOptions::*parameter) {
  static_cast<void>(parameter_of(parameter).read(bits));
  static_assert(Precision{std::countr_zero(2U)} == Precision::int2 &&
                Precision{std::countr_zero(4U)} == Precision::int4 &&
                Precision{std::countr_zero(8U)} == Precision::int8);
  return static_cast<Precision>(std::countr_zero(bits));
}

void check_parameters(const StackOptions& o) {
  if (o.t1 && o.t2 && *o.t1 > *o.t2) {
    throw ConfigError(fmt::format("parameter \"{}\": expected at most {}, {}, got {}", parameter_of(&O::t1).name,
                                  parameter_of(&O::t2).name, *o.t2, *o.t1));
  }
  if (const auto pair = precision_pair(o); pair && pair->low >= pair->high) {
    const char* names[] = {"", "INT2", "INT4", "INT8", "the model's own"};
    throw ConfigError(fmt::format(
        "precisions of a stack: low is {} and high is {}, expected fewer bits for low than for high ({}, {})",
        names[static_cast<unsigned>(pair->low)], names[static_cast<unsigned>(pair->high)],
        parameter_of(&O::low_bits).flag(), parameter_of(&O::high_bits).flag()));
  }
}

PrecisionSet precisions_for(const StackOptions& o) {
  check_parameters(o);
  const auto pair = precision_pair(o);
  return pair ? pair->low | pair->high : find_stack(o.stack).precisions;
}

PrecisionSet precisions_for(const StackOptions& o, std::uint64_t all_bytes) {
  const bool turns = find_stack(o.stack).full_where_all_fits && !chooses_precisions(o);
  return turns && all_bytes > 0 && o.budget_bytes >= all_bytes ? Precision::full : precisions_for(o);
}

bool chooses_precisions(const StackOptions& o) {
  return o.low_bits || o.high_bits || o.low_share_percent || o.low_on_miss;
}

}  // namespace ferry::engine
