// An engine's own CUDA code on Ferry's CUDA link: page-locked experts on the host, slots on the GPU, copies beside the
// computation. Everything else here stands for an engine's own code. Needs the CUDA runtime, but no kernels and no nvcc.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ferry/link/cuda_stream.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 4, experts = 16, top_k = 2;
constexpr std::uint64_t expert_bytes = std::uint64_t{1} << 20U;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Stands for the gate: which experts this layer likes for this token.
std::vector<float> gate(std::uint32_t token, std::uint16_t layer) {
  std::vector<float> scores(experts, 0.01F);
  scores[(token / 4 + layer) % experts] = 0.5F;
  scores[(token * 3 + layer) % experts] = 0.36F;
  return scores;
}

unsigned char content(ferry::ExpertId id) {
  return static_cast<unsigned char>(id.layer * experts + id.expert);
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("skipped: no GPU"), 0;

  // The engine's experts in one page-locked block, and a block that stands for its results.
  unsigned char *host = nullptr, *results = nullptr;
  check(cudaMallocHost(reinterpret_cast<void**>(&host), layers * experts * expert_bytes));
  check(cudaMallocHost(reinterpret_cast<void**>(&results), layers * experts));
  auto at = [&](ferry::ExpertId id) { return host + (id.layer * experts + id.expert) * expert_bytes; };
  for (std::uint16_t l = 0; l < layers; ++l) {
    for (std::uint16_t e = 0; e < experts; ++e) std::fill_n(at({l, e}), expert_bytes, content({l, e}));
  }
  cudaStream_t compute = nullptr;
  check(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));

  using Stack = ferry::stacks::CrossLayerLru;
  ferry::CoreConfig<Stack> config;
  config.model.layers = layers;
  config.model.experts = experts;
  config.model.top_k = top_k;
  config.model.max_rows = 1;
  config.model.renormalise = ferry::Renormalise::yes;
  config.model.expert_bytes = {{0, 0, 0, 0, expert_bytes}};  // stored at full precision only
  config.allotment = ferry::pool_per_layer(config.model, config.model.all_bytes() / 4);
  int wrong = 0;
  try {
    ferry::CudaSlots slots(
        config.allotment,
        [&](ferry::Variant v) -> ferry::HeldBytes {
          return ferry::View<const std::byte>{reinterpret_cast<const std::byte*>(at(v.id)), expert_bytes};
        },
        {.pinned = true});
    ferry::CudaStream link(slots, compute, {.ahead_bytes = 4 * expert_bytes});
    ferry::OffloadPipeline<Stack, ferry::CudaStream> pipe(config, link);

    const std::uint32_t sequence = 0;
    for (std::uint32_t token = 0; token < 100; ++token) {
      pipe.begin_step({ferry::Phase::decode, {&sequence, 1}});
      for (std::uint16_t l = 0; l < layers; ++l) {
        const std::vector<float> scores = gate(token, l);
        const ferry::Plan plan = pipe.plan({l, scores, scores});
        std::vector<float> predicted;  // a real engine's gate kernel computes these rows with its own
        pipe.look_ahead(ferry::RowSource::gate_input, [&](std::uint16_t next, std::uint16_t /*distance*/) {
          predicted = gate(token, next);
          return ferry::Scores{next, predicted, predicted};
        });
        // Stands for an expert's kernels: work on the compute stream that reads the slot.
        auto run = [&](const ferry::Task& task) {
          const std::byte* last = slots.slot(task.slot) + expert_bytes - 1;
          check(cudaMemcpyAsync(results + task.what.id.expert, last, 1, cudaMemcpyDeviceToHost, compute));
        };
        for (const ferry::Task& task : plan.resident) run(task);
        pipe.done(plan.resident);
        for (const ferry::Task& task : plan.arriving) {
          pipe.wait(task);  // the stream waits for the copy; this thread does not
          run(task);
          pipe.done(task);
        }
        pipe.finish(l);
        check(cudaStreamSynchronize(compute));  // a real engine does so once a layer, to read the next gate
        for (const ferry::Route& r : plan.routes) wrong += results[r.expert] == content({l, r.expert}) ? 0 : 1;
      }
    }
    const ferry::Outcomes& o = pipe.counters().of(ferry::Phase::decode);
    std::printf("%llu requests, %.1f%% hits, %llu bytes copied, at best %.1f GB/s\n",
                static_cast<unsigned long long>(o.requests), 100 * o.hit_rate(),
                static_cast<unsigned long long>(link.bytes_copied()), link.peak_bytes_per_s() * 1e-9);
  } catch (const std::exception& e) {  // no room on the GPU, or a CUDA error: the text names the call
    std::printf("%s\n", e.what());
    return 1;
  }
  check(cudaStreamDestroy(compute));
  check(cudaFreeHost(results));
  check(cudaFreeHost(host));
  if (wrong > 0) std::printf("%d results from wrong bytes!\n", wrong);
  return wrong == 0 ? 0 : 1;
}
