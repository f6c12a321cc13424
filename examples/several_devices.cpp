// A model over two devices: each has some of the layers, a link and a pipeline of its own. A pipeline counts its own
// layers from 0, and knows nothing of the other: it may run on another thread, or in another process.
#include <array>
#include <cstdio>
#include <random>

#include "ferry/link/host_thread.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 10, experts = 16, top_k = 2;
constexpr std::size_t expert_bytes = 4096;

/// Every expert of the model in host memory, which all devices copy from.
using Host = std::vector<std::byte>;
std::byte content(ferry::ExpertId id) {
  return static_cast<std::byte>(id.layer * experts + id.expert);
}

/// One device, with the layers from `first` on.
class Device {
  using Stack = ferry::stacks::CrossLayerLru;

 public:
  Device(const Host& host, std::uint16_t first, std::uint16_t count, std::uint64_t bytes)
      : first_(first),
        config_(configure(count, bytes)),
        memory_(config_.allotment,
                [&host, first](ferry::Variant v) -> ferry::HeldBytes {
                  const std::size_t at = ((first + v.id.layer) * experts + v.id.expert) * expert_bytes;
                  return ferry::View<const std::byte>{&host[at], expert_bytes};
                }),
        link_(memory_, {}),
        pipe_(config_, link_) {}

  /// Runs one token through this device's layers; false if a slot does not hold its expert. `scores`: [layers, experts] of the
  /// whole model.
  bool run(const std::vector<float>& scores) {
    bool good = true;
    const std::uint32_t sequence = 0;
    auto of = [&](std::uint16_t layer) {  // a layer of this device
      const ferry::View<const float> row(&scores[experts * (first_ + layer)], experts);
      return ferry::Scores{layer, row, row};
    };
    pipe_.begin_step({ferry::Phase::decode, {&sequence, 1}});
    for (std::uint16_t l = 0; l < config_.model.layers; ++l) {
      const ferry::Plan plan = pipe_.plan(of(l));
      pipe_.look_ahead(ferry::RowSource::gate_input, [&](auto next, auto /*distance*/) { return of(next); });
      auto compute = [&](const ferry::Task& task) {
        const ferry::ExpertId id{static_cast<std::uint16_t>(first_ + l), task.what.id.expert};
        for (std::uint32_t i = 0; i < expert_bytes; ++i) good = good && memory_.slot(task.slot)[i] == content(id);
      };
      for (const ferry::Task& task : plan.resident) compute(task);
      pipe_.done(plan.resident);
      for (const ferry::Task& task : plan.arriving) {
        pipe_.wait(task);
        compute(task);
        pipe_.done(task);
      }
      pipe_.finish(l);
    }
    return good;
  }
  const ferry::Outcomes& outcomes() const { return pipe_.counters().of(ferry::Phase::decode); }

 private:
  static ferry::CoreConfig<Stack> configure(std::uint16_t count, std::uint64_t bytes) {
    ferry::CoreConfig<Stack> config;
    config.model = {{count, experts, top_k, 1, ferry::Renormalise::yes}, {{0, 0, 0, 0, expert_bytes}}};
    Stack::set_up(config, bytes);
    return config;
  }

  std::uint16_t first_;
  ferry::CoreConfig<Stack> config_;
  ferry::SlotMemory memory_;
  ferry::HostThread link_;  // destroyed before the memory that its thread writes
  ferry::OffloadPipeline<Stack, ferry::HostThread> pipe_;
};

}  // namespace

int main() {
  Host host;
  for (std::uint16_t l = 0; l < layers; ++l) {
    for (std::uint16_t e = 0; e < experts; ++e) host.insert(host.end(), expert_bytes, content({l, e}));
  }
  // The second device is smaller. The layers are split so that each device has room for half of its experts.
  constexpr std::uint16_t first = layers * 6 / 10, second = layers - first;
  static_assert(first > 0 && second > 0, "each device has a layer at least");
  Device big(host, 0, first, first * experts * expert_bytes / 2);
  Device small(host, first, second, second * experts * expert_bytes / 2);

  std::mt19937 random(1);
  std::vector<float> scores(layers * experts);  // drifting from token to token
  for (int token = 0; token < 100; ++token) {
    for (float& s : scores) s = 0.7F * s + 0.3F * static_cast<float>(random() % 1000) / 1000;
    // A real engine passes the hidden state on in between; meanwhile the first device begins with another sequence.
    if (!big.run(scores) || !small.run(scores)) return std::puts("wrong bytes!"), 1;
  }
  std::uint64_t requests = 0;
  for (const Device* device : {&big, &small}) {
    requests += device->outcomes().requests;
    std::printf("%.1f%% hits, %.1f MB copied\n", 100 * device->outcomes().hit_rate(),
                static_cast<double>(device->outcomes().bytes) / 1e6);
  }
  return requests == std::uint64_t{100} * layers * top_k ? 0 : 1;
}
