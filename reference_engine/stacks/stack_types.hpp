/// @file
/// From the name of a stack to its type: the rows behind configure_stack. For the files that make them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "ferry/cache/belady.hpp"
#include "ferry/predictor/oracle.hpp"
#include "stacks/configured_stack.hpp"
#include "stacks/stack_config.hpp"
#include "stacks/stack_table.hpp"

namespace ferry::engine {

struct StackType {
  const char* name;
  ConfiguredStack (*configure)(const ModelShape&, const StackOptions&, const CopyCost&, Clairvoyance, const Future&);
};

/// The rows, by the paper that they come from; each in a file of its own, since they take a while to compile.
std::vector<StackType> baseline_types();
std::vector<StackType> fate_types();
std::vector<StackType> hobbit_types();
std::vector<StackType> importance_types();
std::vector<StackType> own_types();

namespace part {

template <class S>
using WithOracle = Stack<Oracle, typename S::cache, typename S::precision, typename S::scheduler, typename S::router>;
template <class S>
using WithBelady =
    Stack<typename S::predictor, Belady, typename S::precision, typename S::scheduler, typename S::router>;
using BeladyOnDemand = Stack<NoPrediction, Belady, FixedPrecision, stacks::LoadEverything, TopK>;

/// A stack by its parts alone: stacks of the same parts, which differ in how they are set up, are compiled once.
template <class S>
using PartsOf =
    Stack<typename S::predictor, typename S::cache, typename S::precision, typename S::scheduler, typename S::router>;

/// What two stacks have in common.
template <class To, class From>
CoreConfig<To> same_layout(const CoreConfig<From>& from) {
  CoreConfig<To> to;
  static_cast<CoreSettings&>(to) = from;
  auto take = [](auto& a, const auto& b) {
    if constexpr (std::is_same_v<std::decay_t<decltype(a)>, std::decay_t<decltype(b)>>) a = b;
  };
  take(to.predictor, from.predictor);
  take(to.cache, from.cache);
  take(to.precision, from.precision);
  take(to.scheduler, from.scheduler);
  take(to.router, from.router);
  return to;
}

template <class S>
std::unique_ptr<AnyConfig> knowing(const CoreConfig<S>& config, const std::string& name, Clairvoyance knows,
                                   const Future& future) {
  if (knows == Clairvoyance::none) return any_config(same_layout<PartsOf<S>>(config));
  if constexpr (std::is_same_v<typename S::precision, FixedPrecision> && std::is_same_v<typename S::router, TopK>) {
    auto predict = [&](auto c) {
      c.predictor.asked = future.asked;
      c.predictor.starts = future.starts;
      c.predictor.depth = std::max<std::uint32_t>(1, ferry::part::depth_of(config.predictor));
      return c;
    };
    if (knows == Clairvoyance::prediction) return any_config(predict(same_layout<WithOracle<S>>(config)));
    if constexpr (ferry::part::caches<typename S::cache>()) {
      if (knows == Clairvoyance::both) {
        auto c = predict(same_layout<WithBelady<WithOracle<S>>>(config));
        c.cache.future = future.asked;
        return any_config(c);
      }
      if (knows == Clairvoyance::cache) {
        auto c = same_layout<WithBelady<S>>(config);
        c.cache.future = future.asked;
        return any_config(c);
      }
      auto c = same_layout<BeladyOnDemand>(config);
      c.cache.future = future.asked;
      return any_config(c);
    }
    throw NoFuture("stack " + name + " keeps nothing: there is no cache that could know the future");
  }
  throw NoFuture("stack " + name +
                 " chooses precisions or experts by what is resident: there is no one future to know");
}

template <class S>
ConfiguredStack configure(const ModelShape& model, const StackOptions& o, const CopyCost& copy_cost, Clairvoyance knows,
                          const Future& future) {
  return {knowing(stack_config<S>(model, o, copy_cost), o.stack, knows, future), traits_of<S>().preloads};
}

template <Precision p>
ConfiguredStack configure_resident(const ModelShape& model, const StackOptions& o, const CopyCost& copy_cost,
                                   Clairvoyance knows, const Future& future) {
  return {knowing(resident_config<p>(model, o, copy_cost), o.stack, knows, future), true};
}

/// Takes the rows of stack_table.hpp.
struct TypeTable {
  std::vector<StackType> types;

  template <class S>
  void stack(const char* name) {
    types.push_back({name, configure<S>});
  }
  template <Precision p>
  void resident(const char* name) {
    types.push_back({name, configure_resident<p>});
  }
};

}  // namespace part
}  // namespace ferry::engine
