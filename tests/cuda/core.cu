// The decision core compiles for the device: one thread plans, looks ahead and finishes a layer, all from one
// block of memory that was built on the host and copied. Compiled where nvcc is; run where a GPU is (tests/gpu).
#include <cstdint>

#include "ferry/core.hpp"
#include "ferry/stacks.hpp"

using namespace ferry;

template <class StackT>
__global__ void one_layer(Core<StackT>* core, const float* scores, std::uint32_t rows, std::uint64_t* out) {
  const std::uint32_t cells = rows * core->shape().experts;
  std::uint32_t sequence[8] = {};
  core->begin_step({Phase::decode, {sequence, rows}});
  const Plan plan = core->plan({0, {scores, cells}, {scores, cells}}, Seen{});
  std::uint64_t sum = plan.arriving.size;
  for (const Copy& c : core->commands().submit) sum = sum * 31 + c.slot;
  core->look_ahead({1, {scores, cells}, {scores, cells}}, Seen{});
  for (const Copy& c : core->commands().submit) sum = sum * 31 + c.slot;
  core->done(plan.arriving);
  core->finish(0, Times{}, Seen{});
  core->abandon();
  core->end_sequence(0);
  *out = sum;
}

template __global__ void one_layer(Core<stacks::OnDemand>*, const float*, std::uint32_t, std::uint64_t*);
template __global__ void one_layer(Core<stacks::LruCache>*, const float*, std::uint32_t, std::uint64_t*);
template __global__ void one_layer(Core<stacks::CrossLayerLru>*, const float*, std::uint32_t, std::uint64_t*);
