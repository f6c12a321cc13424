/// @file
/// The named stacks, once: `each_...` calls `table.stack<Stack>(name, what, lossless)` or
/// `table.resident<Precision>(name, what)` for every row. Split by paper, since what is made of the rows takes a while
/// to compile.
#pragma once
#include "ferry/stacks.hpp"

namespace ferry::engine {

template <class Table>
void each_baseline_stack(Table& table) {
  using namespace stacks;
  table.template resident<Precision::full>("resident", "every expert on the device, as the checkpoint has it");
  table.template resident<Precision::int8>("resident-int8", "every expert on the device in INT8");
  table.template resident<Precision::int4>("resident-int4", "every expert on the device in INT4");
  table.template resident<Precision::int2>("resident-int2", "every expert on the device in INT2");
  table.template stack<OnDemand>("on-demand", "each expert is copied when needed, and forgotten", true);
  table.template stack<LayerStream>("layer-stream", "whole layers, one ahead (DeepSpeed-Inference)", true);
  table.template stack<LruCache>("lru", "least recently used, no prefetch (llama.cpp)", true);
  table.template stack<CrossLayerLru>("cross-layer-lru", "lru, and the next layer's gate predicts", true);
  table.template stack<MixtralOffloading>("mixtral-offloading", "lru a layer, and the top-k of the next gate", true);
  table.template stack<MoeInfinity>("moe-infinity", "activation matrices of earlier requests, LFU", true);
  table.template stack<ActivationPathStack>("activation-path", "activation paths with Fate's cache (EAP)", true);
  table.template stack<StaticHost>("static-host", "a fixed part on the device, the host computes the rest", true);
  table.template stack<HybriMoe>("hybrimoe", "averaged scores, misses split between link and host", true);
}

template <class Table>
void each_fate_stack(Table& table) {
  using namespace stacks;
  table.template stack<FatePrefetch>("fate+prefetch", "Fate's prefetch alone", true);
  table.template stack<FateCache>("fate+cache", "its prefetch and its cache", true);
  table.template stack<Fate>("fate", "Fate: prefetch, shallow-favouring ARC, INT4 and INT2", false);
}

template <class Table>
void each_hobbit_stack(Table& table) {
  using namespace stacks;
  table.template stack<HobbitDynamic>("hobbit+dynamic", "HOBBIT's precision by importance, with LRU", false);
  table.template stack<HobbitPrefetch>("hobbit+prefetch", "and its adaptive prefetch", false);
  table.template stack<Hobbit>("hobbit", "HOBBIT: and its multidimensional cache", false);
  table.template stack<HobbitCooperative>("hobbit-cooperative", "the same, the host computes what is missing", false);
}

template <class Table>
void each_importance_stack(Table& table) {
  using namespace stacks;
  table.template stack<ImportanceEviction>("importance+ce", "eviction by recent scores", true);
  table.template stack<ImportanceRouter>("importance+er", "and low-score experts replaced by resident ones", false);
  table.template stack<ImportancePrefetch>("importance+pre", "and top-score experts prefetched", false);
  table.template stack<ImportanceDriven>("importance-driven", "all of it: and misses shared with the host", false);
}

}  // namespace ferry::engine
