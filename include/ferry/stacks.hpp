/// @file
/// Named compositions: the systems of the three papers, the steps of their ablations, and the baselines that they are
/// compared with. Sections and deviations of each part are in its own header.
///
/// Each has `set_up(Config&, Budget)`, which lays the budget out (bytes, or bytes and stream slots: ferry::Budget) and sets
/// the parameters as that system has them. Call it once on a fresh config, after you have set `CoreSettings::model` and the
/// parameters on which the layout depends: precisions, thresholds, shares and the percentile. Where the layout has parameters
/// of its own, they are a third argument, `Layout`. For stacks that declare `preloads`, call OffloadPipeline::preload before
/// the first step. TransferBudget, TwoPointer and BestSplit weigh `CoreSettings::copy_ns` against the times that `finish` is
/// given; without those copy costs they limit nothing and load everything.
#pragma once
#include "ferry/cache/arc.hpp"
#include "ferry/cache/expected_savings.hpp"
#include "ferry/cache/fifo.hpp"
#include "ferry/cache/lfu.hpp"
#include "ferry/cache/load_on_demand.hpp"
#include "ferry/cache/lru.hpp"
#include "ferry/cache/multidimensional.hpp"
#include "ferry/cache/score_average.hpp"
#include "ferry/cache/score_window.hpp"
#include "ferry/cache/static.hpp"
#include "ferry/core_config.hpp"
#include "ferry/limit/first_miss.hpp"
#include "ferry/limit/no_limit.hpp"
#include "ferry/limit/transfer_budget.hpp"
#include "ferry/order/arrival_order.hpp"
#include "ferry/order/batch_size_order.hpp"
#include "ferry/order/popularity_order.hpp"
#include "ferry/placement/best_split.hpp"
#include "ferry/placement/chosen.hpp"
#include "ferry/placement/device_only.hpp"
#include "ferry/placement/earliest_finish.hpp"
#include "ferry/placement/host_in_decode.hpp"
#include "ferry/placement/two_pointer.hpp"
#include "ferry/precision/fixed.hpp"
#include "ferry/precision/importance_thresholds.hpp"
#include "ferry/precision/popularity_hybrid.hpp"
#include "ferry/predictor/activation_matrix.hpp"
#include "ferry/predictor/activation_path.hpp"
#include "ferry/predictor/cross_layer_gate.hpp"
#include "ferry/predictor/every_expert.hpp"
#include "ferry/predictor/none.hpp"
#include "ferry/predictor/partial_hidden.hpp"
#include "ferry/predictor/stacked_gates.hpp"
#include "ferry/router/expert_cache.hpp"
#include "ferry/router/expert_skipping.hpp"
#include "ferry/router/top_k.hpp"
#include "ferry/schedule.hpp"

namespace ferry::inline FERRY_ABI::stacks {

/// Loads what it is asked for, in that order, and computes on the device.
using LoadEverything = Schedule<NoLimit, ArrivalOrder, DeviceOnly>;
/// The same, but the host computes what is missing in decode.
using HostComputes = Schedule<NoLimit, ArrivalOrder, HostInDecode>;
/// Fate's: no more prefetches than a layer's time hides, the most popular first.
using FateSchedule = Schedule<TransferBudget, PopularityOrder, DeviceOnly>;
/// HOBBIT's: prefetches for the first layer ahead that lacks an expert.
using HobbitSchedule = Schedule<FirstMiss, ArrivalOrder, DeviceOnly>;

// Layouts that several stacks share

/// The precisions that the stack may choose: slots are large enough for each of them.
template <class Config>
PrecisionSet held_precisions(const Config& c) {
  return PrecisionSet(static_cast<std::uint8_t>(c.precision.precisions() & ~part::bit(Precision::skip)));
}
/// The same number of slots in each layer.
struct PerLayer {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    c.allotment = pool_per_layer(c.model, budget, held_precisions(c));
  }
};
/// One pool of slots over all layers.
struct OnePool {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    c.allotment = one_pool(c.model, budget, held_precisions(c));
  }
};
/// The same, full before the first step.
struct Preloaded : PerLayer {
  static constexpr bool preloads = true;
};
/// The same number of slots in each layer; predicts the plain top-k of the next layer's gate, whatever the percentile is.
struct PlainTopK {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    PerLayer::set_up(c, budget);
    c.predictor.plain_top_k = true;
  }
};
/// Room for what a prefetcher brings for two layers: the one that runs and the next.
template <class Config>
std::uint32_t room_for_prefetch(const Config& c) {
  std::uint32_t each = c.model.top_k;
  if constexpr (requires { c.predictor.candidates(c.model.experts); }) {
    each = std::max<std::uint32_t>(each, c.predictor.candidates(c.model.experts));
  }
  return 2 * each;
}
/// Fate's shallow-favouring cache.
struct ShallowLayout {
  std::uint32_t shallow = 4;  ///< layers, as for Qwen1.5-MoE (Fate, section 4.4); calibrated for other models
};
/// A pool a layer, in which the shallow layers have a slot for every expert.
struct ShallowLayers {
  using Layout = ShallowLayout;  ///< what users may set of it
  template <class Config>
  static void set_up(Config& c, Budget budget, Layout layout = Layout()) {
    c.allotment = shallow_favouring(c.model, budget, std::min<std::uint32_t>(layout.shallow, c.model.layers),
                                    held_precisions(c), room_for_prefetch(c));
  }
};
/// HOBBIT's two caches over all layers, one by precision. Where every expert fits at high precision, nothing is shrunk.
/// Ambiguity resolved: the paper does not say what they hold before the first token; here, nothing.
struct HighAndLowLayout {
  std::uint32_t low_percent = 10;  ///< of the budget, for low precision; ours, calibrated
  bool keeps_thresholds = false;   ///< as set, even where every expert fits at high precision
};
/// A pool of slots for high precision, and one for low.
struct HighAndLow {
  using Layout = HighAndLowLayout;  ///< what users may set of it
  template <class Config>
  static void set_up(Config& c, Budget budget, Layout layout = Layout()) {
    if constexpr (requires { c.cache.high; }) c.cache.high = c.precision.high;
    const bool all_fit = budget.bytes >= everything(c.model, c.precision.high).bytes();
    if (all_fit && !layout.keeps_thresholds) c.precision.t1 = c.precision.t2 = 1.0F;
    if (c.precision.t1 == c.precision.t2) {  // nothing crosses at low precision
      c.allotment = one_pool(c.model, budget, c.precision.high);
    } else {
      c.allotment = high_low_pools(c.model, budget, c.precision.high, c.precision.low, layout.low_percent);
    }
  }
};

// Baselines

/// Every expert of every layer is copied when it is needed, and forgotten.
struct OnDemand : Stack<NoPrediction, LoadOnDemand, FixedPrecision, LoadEverything, TopK> {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    c.allotment = stream_only(c.model, budget, held_precisions(c));
  }
};

/// DeepSpeed-Inference, Transformers: whole layers, the next one while this one computes. Deviation: a layer's experts
/// go as single copies, so that those which are needed do not wait for the others.
struct LayerStream : Stack<EveryExpert, FifoCache, FixedPrecision, LoadEverything, TopK>, OnePool {};

/// Least recently used a layer, no prefetch. With an allotment of `everything` and a preload: the fully resident model.
struct LruCache : Stack<NoPrediction, Lru, FixedPrecision, LoadEverything, TopK>, PerLayer {};

/// The same with experts in INT4, as Fate and HOBBIT hold them: shows how much of their gain is due to bits, not policy.
struct LruInt4 : LruCache {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    c.precision.precision = Precision::int4;
    LruCache::set_up(c, budget);
  }
};

/// The expert cache of llama.cpp's forks (`--moe-cache`): least recently used over all layers, filled as experts are asked
/// for, and bypassed in steps of more than 32 rows, or of more than the config says. Deviations: only prefill steps bypass
/// it; in them free slots are still filled, and what is there counts as used.
struct LlamaCache : Stack<NoPrediction, Lru, FixedPrecision, LoadEverything, TopK> {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    OnePool::set_up(c, budget);
    if (c.transient_prefill_rows == CoreSettings().transient_prefill_rows) c.transient_prefill_rows = 32;
  }
};

/// LruCache with the next layer's experts predicted by its gate from this layer's gate input.
struct CrossLayerLru : Stack<CrossLayerGate, Lru, FixedPrecision, LoadEverything, TopK>, PerLayer {};

/// Mixtral-offloading (Eliseev and Mazur, 2023): LRU a layer, and the plain top-k of the next layer's gate.
struct MixtralOffloading : Stack<CrossLayerGate, Lru, FixedPrecision, LoadEverything, TopK>, PlainTopK {};

/// MoE-Infinity (Xue et al., 2024): activation matrices of earlier requests, least frequently used. Ambiguity resolved:
/// HOBBIT says LFU and names no level; it is the model's here.
struct MoeInfinity : Stack<ActivationMatrix, Lfu, FixedPrecision, LoadEverything, TopK> {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    OnePool::set_up(c, budget);
    c.cache.over = CountOver::model;
  }
};

/// EAP as Fate compares with it (section 5.1): activation paths, with Fate's cache, which holds INT4 where the budget
/// does not hold all of the model's own (section 4.5). Ambiguity resolved: "a caching strategy identical to Fate" is
/// layout, eviction and that INT4; the INT2 of Fate's prefill goes by predicted popularity, and stays Fate's.
struct ActivationPathStack : Stack<ActivationPath, Arc, FixedPrecision, LoadEverything, TopK> {
  using Layout = ShallowLayers::Layout;  ///< what users may set of it
  template <class Config>
  static void set_up(Config& c, Budget budget, Layout layout = Layout()) {
    if (budget.bytes < everything(c.model).bytes()) c.precision.precision = Precision::int4;
    ShallowLayers::set_up(c, budget, layout);
  }
};
/// The same with experts at the model's own precision whatever the budget: what fate+cache is compared with.
struct ActivationPathFull : Stack<ActivationPath, Arc, FixedPrecision, LoadEverything, TopK>, ShallowLayers {};

/// llama.cpp with experts in host memory, Fiddler: what is on the device stays there, the host computes the rest in
/// decode. Deviations: the first experts of each layer are the ones that stay (llama.cpp splits by layers, Fiddler chooses
/// popular ones), and prefill loads what is missing.
struct StaticHost : Stack<NoPrediction, StaticResidency, FixedPrecision, HostComputes, TopK>, Preloaded {};

/// The same with experts in INT4.
struct StaticHostInt4 : StaticHost {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    c.precision.precision = Precision::int4;
    StaticHost::set_up(c, budget);
  }
};

/// HybriMoE (Zhong et al., 2025): averaged scores, prefetch for the next layer, misses split between link and host.
/// Deviations: HybriMoE chooses prefetches by simulating their effect, and lets the host compute in prefill, too; here they
/// are the plain top-k of the next layer's gate, and prefill loads everything.
struct HybriMoe : Stack<CrossLayerGate, ScoreAverage, FixedPrecision,
                        Schedule<NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::best_split>>, TopK>,
                  PlainTopK {
  static constexpr bool preloads = true;
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    PlainTopK::set_up(c, budget);
    c.cache.top_p = 2U * c.model.top_k;
  }
};

// Ours

/// Nobody waits for a copy that the host can beat: a missing expert is computed wherever the layer then ends earliest, mostly
/// on the host, and the experts that saved most of late are copied afterwards, into one pool of all layers. Lossless.
struct Ferry
    : Stack<NoPrediction, ExpectedSavings, FixedPrecision, Schedule<NoLimit, BatchSizeOrder, EarliestFinish>, TopK>,
      OnePool {
  static constexpr bool preloads = true;
};

/// The same with experts in INT4.
struct FerryInt4 : Ferry {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    c.precision.precision = Precision::int4;
    Ferry::set_up(c, budget);
  }
};

/// FerryInt4 within a loss that the user states: what matters least is not run.
struct FerryLossy : Stack<NoPrediction, ExpectedSavings, FixedPrecision,
                          Schedule<NoLimit, BatchSizeOrder, EarliestFinish>, ExpertSkipping> {
  static constexpr bool preloads = true;
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    FerryInt4::set_up(c, budget);
  }
};

/// The host computes nothing: missing experts are waited for, and those are kept that, by what is learned, will be used again
/// soonest. One pool of all layers. Lossless.
struct FerryDevice : Stack<NoPrediction, ExpectedSavings, FixedPrecision, LoadEverything, TopK>, OnePool {
  static constexpr bool preloads = true;
};

// Fate (section 5.4 has the steps: load on demand, +prefetch, +cache, +quantization)

/// Prefetch without a cache: slots for the candidates of two layers, first in, first out, whatever the budget.
struct FatePrefetch : Stack<CrossLayerGate, FifoCache, FixedPrecision, FateSchedule, TopK> {
  template <class Config>
  static void set_up(Config& c, Budget budget) {
    OnePool::set_up(c, budget);
    Pool& pool = c.allotment.pools[0];
    const std::uint32_t room = room_for_prefetch(c);
    if (c.allotment.stream_slots == 0 && pool.slots < room + budget.stream_slots)
      return;  // that is all of a tiny model
    pool.slots = std::min(pool.slots, room);
    c.allotment.stream_slots = budget.stream_slots;
    c.allotment.stream_slot_bytes = pool.slot_bytes;
  }
};
struct FateCache : Stack<CrossLayerGate, Arc, FixedPrecision, FateSchedule, TopK>, ShallowLayers {};

/// What users may set of Fate's layout.
struct FateLayout {
  std::uint32_t shallow = ShallowLayout().shallow;  ///< as ShallowLayout has it
  bool keeps_precisions = false;                    ///< as set, even where memory is sufficient for the model's own
};
/// The whole: INT4 experts where the budget does not hold all of the model's own, and INT2 for the unpopular in prefill.
struct Fate : Stack<CrossLayerGate, Arc, PopularityHybrid, FateSchedule, TopK> {
  using Layout = FateLayout;  ///< what users may set of it
  template <class Config>
  static void set_up(Config& c, Budget budget, Layout layout = Layout()) {
    if (!layout.keeps_precisions && budget.bytes >= everything(c.model).bytes()) {  // memory is sufficient
      c.precision.high = Precision::full;
      c.precision.low_share_percent = 0;
      c.precision.low_on_miss = false;
    }
    ShallowLayers::set_up(c, budget, {layout.shallow});
  }
};

// HOBBIT (section 5.5: dynamic loading, prefetching, caching)

struct HobbitDynamic : Stack<NoPrediction, Lru, ImportanceThresholds, LoadEverything, TopK>, HighAndLow {};
struct HobbitPrefetch : Stack<StackedGates, Lru, ImportanceThresholds, HobbitSchedule, TopK>, HighAndLow {};
struct Hobbit : Stack<StackedGates, Multidimensional, ImportanceThresholds, HobbitSchedule, TopK>, HighAndLow {};

/// CPU-GPU cooperative computing (section 4; 5.4 measures it): in decode the host computes what is missing.
struct HobbitCooperative : Stack<StackedGates, Multidimensional, ImportanceThresholds,
                                 Schedule<FirstMiss, ArrivalOrder, HostInDecode>, TopK>,
                           HighAndLow {};

// Importance-driven expert scheduling (section 6.3: from static-host, +CE, +ER, +Pre, +BA). Ambiguity resolved: with a
// cache that changes, misses must be loaded; which of them the host computes instead is the balancer's, the last step.

struct ImportanceEviction : Stack<NoPrediction, ScoreWindow, FixedPrecision, LoadEverything, TopK>, Preloaded {};
struct ImportanceRouter : Stack<NoPrediction, ScoreWindow, FixedPrecision, LoadEverything, ExpertCacheRouter>,
                          Preloaded {};
struct ImportancePrefetch : Stack<PartialHidden, ScoreWindow, FixedPrecision, LoadEverything, ExpertCacheRouter>,
                            Preloaded {};
struct ImportanceDriven
    : Stack<PartialHidden, ScoreWindow, FixedPrecision,
            Schedule<NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::two_pointer>>, ExpertCacheRouter>,
      Preloaded {};
/// Ours: the same with the best split of the balancer's list instead of Algorithm 2, which always loads the first miss
/// and at batch 1 thereby waits for the link where the host would be done sooner.
struct ImportanceBalanced
    : Stack<PartialHidden, ScoreWindow, FixedPrecision,
            Schedule<NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::best_split>>, ExpertCacheRouter>,
      Preloaded {};

}  // namespace ferry::inline FERRY_ABI::stacks
