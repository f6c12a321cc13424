// Two translation units that include everything must link: see odr_b.cpp.
#include "ferry/ferry.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "ferry/link/cuda_stream.hpp"
#include "ferry/link/host_thread.hpp"

std::size_t other_unit();

int main() {
  ferry::CoreConfig<ferry::stacks::CrossLayerLru> config;
  config.model.layers = config.model.experts = config.model.top_k = 1;
  config.model.max_rows = 1;
  config.model.renormalise = ferry::Renormalise::no;
  config.model.expert_bytes = {{0, 0, 0, 0, 64}};
  config.allotment = ferry::everything(config.model);
  return ferry::Core<ferry::stacks::CrossLayerLru>::storage_bytes(config) == other_unit() ? 0 : 1;
}
