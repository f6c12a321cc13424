// A toy engine in one file: it makes every call of the pipeline and implements Link itself.
#include <cstdio>
#include <cstring>
#include <vector>

#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 4, experts = 8, top_k = 2;
constexpr std::uint64_t expert_bytes = 4096;

/// The engine's own way to move experts: here a memcpy, done on the spot. For CUDA there is one: cuda_link.cpp.
class MemcpyLink {
 public:
  MemcpyLink(const std::vector<std::uint64_t>& slots, const std::vector<char>& host)
      : slots_(slots), host_(host), device_(slots.back()) {}

  void submit(const ferry::Copy& c) noexcept {
    const std::size_t from = (c.what.id.layer * experts + c.what.id.expert) * expert_bytes;
    std::memcpy(&device_[slots_[c.slot]], &host_[from], expert_bytes);
    if (c.demand) {
      seen_.demand_landed = c.ticket;
    } else {
      seen_.prefetch_begun = seen_.prefetch_landed = c.ticket;
    }
    ++copies;
  }
  void drop(ferry::Ticket) noexcept {}  // nothing is ever queued
  ferry::Seen seen() noexcept { return seen_; }
  void fence(ferry::Fence) noexcept {}  // computation is over when done() is called
  void wait(ferry::Ticket) {}

  const char* slot(std::uint32_t s) const { return &device_[slots_[s]]; }
  int copies = 0;

 private:
  std::vector<std::uint64_t> slots_;  // where each slot starts
  const std::vector<char>& host_;
  std::vector<char> device_;
  ferry::Seen seen_;
};

/// Stands for the gate: which experts this layer likes for this token.
std::vector<float> gate(std::uint32_t token, std::uint16_t layer) {
  std::vector<float> scores(experts, 0.02F);
  scores[(token / 3 + layer) % experts] = 0.5F;
  scores[(token + 2U * layer) % experts] = 0.38F;
  return scores;
}

/// Stands for an expert: one number, read from its slot.
float run_expert(const char* weights) {
  return static_cast<float>(weights[0]);
}

}  // namespace

int main() {
  // Every expert in host memory; expert e of layer l is filled with 10 l + e.
  std::vector<char> host(layers * experts * expert_bytes);
  for (std::size_t i = 0; i < host.size(); ++i) {
    host[i] = static_cast<char>(i / expert_bytes / experts * 10 + i / expert_bytes % experts);
  }

  using Stack = ferry::stacks::CrossLayerLru;
  ferry::CoreConfig<Stack> config;
  config.model.layers = layers;
  config.model.experts = experts;
  config.model.top_k = top_k;
  config.model.max_rows = 1;
  config.model.renormalise = ferry::Renormalise::yes;
  config.model.expert_bytes = {{0, 0, 0, 0, expert_bytes}};  // stored at full precision only
  config.allotment = ferry::pool_per_layer(config.model, config.model.all_bytes() / 2);
  MemcpyLink link(config.allotment.offsets(), host);
  ferry::OffloadPipeline<Stack, MemcpyLink> pipe(config, link);

  const std::uint32_t sequence = 0;
  for (std::uint32_t token = 0; token < 100; ++token) {
    pipe.begin_step({ferry::Phase::decode, {&sequence, 1}});
    for (std::uint16_t l = 0; l < layers; ++l) {
      const std::vector<float> scores = gate(token, l);
      const ferry::Plan plan = pipe.plan({l, scores, scores});
      std::vector<float> predicted;  // a real engine would run the next layer's gate on this layer's gate input
      pipe.look_ahead(ferry::RowSource::gate_input, [&](std::uint16_t next, std::uint16_t /*distance*/) {
        return ferry::Scores{next, predicted = gate(token, next), predicted};
      });
      float output = 0, expected = 0;
      auto run = [&](const ferry::Task& task) {
        for (std::uint32_t i = 0; i < task.rows; ++i) {
          output += plan.routes[plan.assignments[task.first + i]].weight * run_expert(link.slot(task.slot));
        }
      };
      for (const ferry::Task& task : plan.resident) run(task);
      pipe.done(plan.resident);
      for (const ferry::Task& task : plan.arriving) {
        pipe.wait(task);
        run(task);
        pipe.done(task);
      }
      pipe.finish(l);
      for (const ferry::Route& r : plan.routes) expected += r.weight * static_cast<char>(10 * l + r.expert);
      if (output < expected - 1e-3F || output > expected + 1e-3F) return std::puts("wrong bytes!"), 1;
    }
  }
  pipe.end_sequence(sequence);
  const ferry::Outcomes& o = pipe.counters().of(ferry::Phase::decode);
  std::printf("%llu requests, %.1f%% hits, %d copies\n", static_cast<unsigned long long>(o.requests),
              100 * o.hit_rate(), link.copies);
}
