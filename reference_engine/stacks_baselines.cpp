#include "pipeline_runner.hpp"

namespace ferry::engine {

std::vector<StackEntry> baseline_stacks() {
  using namespace stacks;
  return {
      resident_entry<Precision::full>("resident", "every expert on the device, as the checkpoint has it"),
      resident_entry<Precision::int8>("resident-int8", "every expert on the device in INT8"),
      resident_entry<Precision::int4>("resident-int4", "every expert on the device in INT4"),
      resident_entry<Precision::int2>("resident-int2", "every expert on the device in INT2"),
      stack_entry<OnDemand>("on-demand", "each expert is copied when needed, and forgotten", true),
      stack_entry<LayerStream>("layer-stream", "whole layers, one ahead (DeepSpeed-Inference)", true),
      stack_entry<LruCache>("lru", "least recently used, no prefetch (llama.cpp)", true),
      stack_entry<CrossLayerLru>("cross-layer-lru", "lru, and the next layer's gate foretells", true),
      stack_entry<MixtralOffloading>("mixtral-offloading", "lru a layer, and the top-k of the next gate", true),
      stack_entry<MoeInfinity>("moe-infinity", "activation matrices of earlier requests, LFU", true),
      stack_entry<ActivationPathStack>("activation-path", "activation paths with Fate's cache (EAP)", true),
      stack_entry<StaticHost>("static-host", "a fixed part on the device, the host computes the rest", true),
      stack_entry<HybriMoe>("hybrimoe", "averaged scores, misses split between link and host", true),
  };
}

}  // namespace ferry::engine
