/// @file
/// The types of the named stacks: `each_...` calls `table.stack<Stack>(name)` or `table.resident<Precision>(name)` for
/// every row. Split by paper, since what is made of the rows takes a while to compile. What they are in words, and what
/// a user may set of them, is in stack_options.cpp.
#pragma once
#include "ferry/stacks.hpp"

namespace ferry::engine {

template <class Table>
void each_baseline_stack(Table& table) {
  using namespace stacks;
  table.template resident<Precision::full>("resident");
  table.template resident<Precision::int8>("resident-int8");
  table.template resident<Precision::int4>("resident-int4");
  table.template resident<Precision::int2>("resident-int2");
  table.template stack<OnDemand>("on-demand");
  table.template stack<LayerStream>("layer-stream");
  table.template stack<LruCache>("lru");
  table.template stack<LruInt4>("lru-int4");
  table.template stack<LlamaCache>("llama-cache");
  table.template stack<CrossLayerLru>("cross-layer-lru");
  table.template stack<MixtralOffloading>("mixtral-offloading");
  table.template stack<MoeInfinity>("moe-infinity");
  table.template stack<ActivationPathStack>("activation-path");
  table.template stack<ActivationPathFull>("activation-path-full");
  table.template stack<StaticHost>("static-host");
  table.template stack<StaticHostInt4>("static-host-int4");
  table.template stack<HybriMoe>("hybrimoe");
}

template <class Table>
void each_own_stack(Table& table) {
  table.template stack<stacks::Ferry>("ferry");
  table.template stack<stacks::FerryInt4>("ferry-int4");
  table.template stack<stacks::FerryLossy>("ferry-lossy");
  table.template stack<stacks::FerryDevice>("ferry-device");
}

template <class Table>
void each_fate_stack(Table& table) {
  using namespace stacks;
  table.template stack<FatePrefetch>("fate+prefetch");
  table.template stack<FateCache>("fate+cache");
  table.template stack<Fate>("fate");
}

template <class Table>
void each_hobbit_stack(Table& table) {
  using namespace stacks;
  table.template stack<HobbitDynamic>("hobbit+dynamic");
  table.template stack<HobbitPrefetch>("hobbit+prefetch");
  table.template stack<Hobbit>("hobbit");
  table.template stack<HobbitCooperative>("hobbit-cooperative");
}

template <class Table>
void each_importance_stack(Table& table) {
  using namespace stacks;
  table.template stack<ImportanceEviction>("importance+ce");
  table.template stack<ImportanceRouter>("importance+er");
  table.template stack<ImportancePrefetch>("importance+pre");
  table.template stack<ImportanceDriven>("importance-driven");
  table.template stack<ImportanceBalanced>("importance-balanced");
}

}  // namespace ferry::engine
