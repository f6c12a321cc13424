// The stack `Ferry`: the host computes missing experts where they lie, while the device computes those it has; copies follow
// behind, and nobody waits for them. The stack weighs three costs, which are measured here before the first step.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <random>
#include <vector>

#include "ferry/link/host_thread.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 6, experts = 32, top_k = 4, dim = 192;
constexpr std::uint32_t expert_bytes = dim * dim * sizeof(float);
constexpr std::uint64_t link_bytes_per_s = 200'000'000;
using Floats = std::vector<float>;

/// Stands for an expert, on the device and on the host alike: both add in one order.
void run_expert(const float* weights, const float* x, float* y) {
  for (std::uint32_t o = 0; o < dim; ++o) {
    y[o] = 0;
    for (std::uint32_t i = 0; i < dim; ++i) y[o] += weights[o * dim + i] * x[i];
  }
}

template <class Work>
ferry::Nanoseconds time_of(const Work& work) {
  ferry::Nanoseconds least = 1'000'000'000;  // of several times: other programs may have the processor in between
  for (int i = 0; i < 9; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const ferry::Nanoseconds took = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    if (took < least) least = took;
  }
  return least;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  auto number = [&] { return static_cast<float>(random() % 1000) / 1000; };
  Floats host(std::size_t{layers} * experts * dim * dim);
  for (float& w : host) w = number() - 0.5F;
  auto weights_of = [&](ferry::ExpertId id) { return &host[(id.layer * experts + id.expert) * dim * dim]; };

  using Stack = ferry::stacks::Ferry;
  constexpr auto full = static_cast<unsigned>(ferry::Precision::full);
  ferry::CoreConfig<Stack> config;
  config.model = {{layers, experts, top_k, 1, ferry::Renormalise::yes}, {{0, 0, 0, 0, expert_bytes}}};
  Stack::set_up(config, {config.model.all_bytes() / 4, ferry::unwaited_stream_slots(config.model)});

  Floats x(dim), y(top_k * dim);
  auto run_layer = [&] {
    for (std::uint16_t e = 0; e < experts; ++e) run_expert(weights_of({0, e}), x.data(), y.data());
  };
  const ferry::Nanoseconds one_ns = time_of(run_layer) / experts;
  config.copy_ns[full] = ferry::Nanoseconds{expert_bytes} * 1'000'000'000 / link_bytes_per_s;
  config.costs.device_ns[full] = config.costs.host_ns[full] = one_ns;  // here one processor is both
  config.costs.host_start_ns = time_of([] { std::async(std::launch::async, [] {}).wait(); });

  ferry::SlotMemory memory(config.allotment, [&](ferry::Variant v) -> ferry::HeldBytes {
    return ferry::View<const std::byte>{reinterpret_cast<const std::byte*>(weights_of(v.id)), expert_bytes};
  });
  ferry::HostThread link(memory, {.bytes_per_s = link_bytes_per_s});
  ferry::OffloadPipeline<Stack, ferry::HostThread> pipe(config, link);
  pipe.preload();

  Floats taste(layers * experts);  // which experts a layer likes, drifting from token to token
  const std::uint32_t sequence = 0;
  for (int token = 0; token < 100; ++token) {
    for (float& t : taste) t = 0.95F * t + 0.05F * number();
    for (float& v : x) v = number();
    pipe.begin_step({ferry::Phase::decode, {&sequence, 1}});
    for (std::uint16_t l = 0; l < layers; ++l) {
      const ferry::View<const float> scores(&taste[l * experts], experts);
      const ferry::Plan plan = pipe.plan({l, scores, scores});
      // Tasks of the host have no slot. Each task writes its own rows, so the two sides need no lock.
      auto run = [&](const ferry::Task& task, const float* weights) {
        for (const std::uint32_t a : plan.assignments.part(task.first, task.rows)) {
          run_expert(weights, x.data(), &y[a * dim]);
        }
      };
      std::future<void> beside;
      if (plan.host.size > 0) {
        beside = std::async(std::launch::async, [&] {
          for (const ferry::Task& task : plan.host) run(task, weights_of(task.what.id));
        });
      }
      for (const ferry::Task& task : plan.resident) {
        run(task, reinterpret_cast<const float*>(memory.slot(task.slot)));
      }
      pipe.done(plan.resident);
      for (const ferry::Task& task : plan.arriving) {
        pipe.wait(task);
        run(task, reinterpret_cast<const float*>(memory.slot(task.slot)));
        pipe.done(task);
      }
      if (beside.valid()) beside.get();
      pipe.finish(l);  // pass `Times` if costs are not known beforehand

      Floats expected(dim);
      for (std::uint32_t a = 0; a < plan.routes.size; ++a) {
        run_expert(weights_of({l, plan.routes[a].expert}), x.data(), expected.data());
        if (std::memcmp(&y[a * dim], expected.data(), dim * sizeof(float)) != 0) return std::puts("wrong numbers!"), 1;
      }
    }
  }
  const ferry::Outcomes& o = pipe.counters().of(ferry::Phase::decode);
  std::printf("%.1f%% of %llu requests resident, %.1f%% computed by the host, %.1f%% waited for; %llu promoted\n",
              100 * o.hit_rate(), static_cast<unsigned long long>(o.requests),
              100.0 * static_cast<double>(o.host_computed) / static_cast<double>(o.requests),
              100.0 * static_cast<double>(o.misses + o.late_hits) / static_cast<double>(o.requests),
              static_cast<unsigned long long>(pipe.counters().prefetch.promoted));
  return o.hits + o.late_hits + o.misses + o.host_computed == o.requests ? 0 : 1;
}
