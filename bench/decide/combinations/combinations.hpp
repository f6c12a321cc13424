/// @file
/// Every sensible combination of policies around one cache policy, as types.
#pragma once
#include <string>
#include <tuple>
#include <type_traits>

#include "decide/layer_benchmark.hpp"

namespace ferry::bench {

/// A policy and its name.
template <class T>
struct Named {
  using type = T;
  const char* name;
};

inline constexpr auto predictors = std::tuple{Named<NoPrediction>{"none"},
                                              Named<CrossLayerGate>{"cross-layer-gate"},
                                              Named<StackedGates>{"stacked-gates"},
                                              Named<PartialHidden>{"partial-hidden"},
                                              Named<ActivationPath>{"activation-path"},
                                              Named<ActivationMatrix>{"activation-matrix"}};
inline constexpr auto precisions =
    std::tuple{Named<FixedPrecision>{"fixed"}, Named<ImportanceThresholds>{"importance-thresholds"},
               Named<PopularityHybrid>{"popularity-hybrid"}};
/// All that is predicted, Fate's limit, HOBBIT's depth, and misses shared with the host.
inline constexpr auto schedules = std::tuple{
    Named<stacks::LoadEverything>{"all"}, Named<stacks::FateSchedule>{"transfer-budget"},
    Named<stacks::HobbitSchedule>{"first-miss"}, Named<Schedule<NoLimit, BatchSizeOrder, TwoPointer>>{"two-pointer"}};
inline constexpr auto routers = std::tuple{Named<TopK>{"top-k"}, Named<ExpertCacheRouter>{"expert-cache"}};

/// Leaves out combinations that make no sense: limits on prefetches without a predictor, and substitutes for experts that
/// importance or popularity shrinks already.
template <class P, class Q, class S, class R>
consteval bool sensible() {
  constexpr bool limits_prefetch = std::is_same_v<S, stacks::FateSchedule> || std::is_same_v<S, stacks::HobbitSchedule>;
  return !(std::is_same_v<P, NoPrediction> && limits_prefetch) &&
         !(std::is_same_v<R, ExpertCacheRouter> && !std::is_same_v<Q, FixedPrecision>);
}

template <class F>
void for_each_type(const auto& list, const F& f) {
  std::apply([&](const auto&... named) { (f(named), ...); }, list);
}

/// One pool over all layers, for all precisions of the selector.
template <class Cache>
void register_combinations(const char* cache) {
  for_each_type(predictors, [&]<class P>(const Named<P>& p) {
    for_each_type(precisions, [&]<class Q>(const Named<Q>& q) {
      for_each_type(schedules, [&]<class S>(const Named<S>& s) {
        for_each_type(routers, [&]<class R>(const Named<R>& r) {
          if constexpr (sensible<P, Q, S, R>()) {
            using Stack = ferry::Stack<P, Cache, Q, S, R>;
            register_layer<Stack>(fmt::format("{}/{}/{}/{}/{}", p.name, cache, q.name, s.name, r.name), false,
                                  [](CoreConfig<Stack>& c, std::uint64_t budget) {
                                    const PrecisionSet set(static_cast<std::uint8_t>(c.precision.precisions() & ~1U));
                                    c.allotment = one_pool(c.model, budget, set);
                                  });
          }
        });
      });
    });
  });
}

/// One file each, since they take a while to compile.
void register_fifo();
void register_lru();
void register_lfu();
void register_arc();
void register_sieve();
void register_multidimensional();
void register_score_window();
void register_score_average();

}  // namespace ferry::bench
