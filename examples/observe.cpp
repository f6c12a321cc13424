// An engine that caches experts in its own way, and only wants to know what other policies would do. It writes down what
// its gates said; Ferry replays that under any stack, on a machine described by a few numbers, and moves nothing.
#include <algorithm>
#include <cstdio>
#include <list>
#include <numeric>
#include <random>

#include "ferry/any_pipeline.hpp"
#include "ferry/sim/simulation.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 8, experts = 32, top_k = 4, tokens = 400, own_slots = 10;
constexpr std::uint64_t expert_bytes = 8 << 20;

/// The engine's own cache of one layer: least recently used.
class OwnCache {
 public:
  /// How many of a layer's experts, ascending, were there.
  std::uint32_t run(const std::vector<std::uint16_t>& chosen) {
    std::vector<std::uint16_t> missing;
    for (const std::uint16_t e : chosen) {
      const auto at = std::find(held_.begin(), held_.end(), e);
      at == held_.end() ? missing.push_back(e) : held_.splice(held_.begin(), held_, at);
    }
    for (const std::uint16_t e : missing) {
      if (held_.size() == own_slots) held_.pop_back();
      held_.push_front(e);
    }
    return static_cast<std::uint32_t>(chosen.size() - missing.size());
  }

 private:
  std::list<std::uint16_t> held_;  // the most recent first
};

/// What the engine writes down, in the shapes of ferry::Trace.
struct Record {
  std::vector<std::uint16_t> experts;  // [tokens, layers, top_k]
  std::vector<float> scores,
      predicted;  // [tokens, layers, experts]: this layer's, and the next layer's from this one's input
};

/// Decodes, and returns the hits of the engine's own cache.
std::uint64_t decode(Record& record) {
  std::mt19937 random(1);
  std::vector<OwnCache> caches(layers);
  std::vector<float> scores(layers * experts);
  std::uint64_t hits = 0;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    for (float& s : scores) s = 0.8F * s + 0.2F * static_cast<float>(random() % 4096) / 4096;
    for (std::uint32_t l = 0; l < layers; ++l) {
      const float *row = &scores[l * experts], *next = &scores[(l + 1) % layers * experts];
      std::vector<std::uint16_t> chosen(experts);
      std::iota(chosen.begin(), chosen.end(), std::uint16_t{0});
      std::stable_sort(chosen.begin(), chosen.end(), [&](auto a, auto b) { return row[a] > row[b]; });
      chosen.resize(top_k);
      record.experts.insert(record.experts.end(), chosen.begin(), chosen.end());
      record.scores.insert(record.scores.end(), row, row + experts);
      for (std::uint32_t e = 0; e < experts; ++e) {
        record.predicted.push_back(next[e] + 0.05F * static_cast<float>(random() % 4096) / 4096);
      }
      std::sort(chosen.begin(), chosen.end());
      hits += caches[l].run(chosen);
    }
  }
  return hits;
}

}  // namespace

int main() {
  Record record;
  const std::uint64_t own_hits = decode(record);
  ferry::Trace trace;
  trace.model = {{layers, experts, top_k, 1, ferry::Renormalise::yes}, {{0, 0, 0, 0, expert_bytes}}};
  trace.tokens = tokens;
  const std::uint32_t sequence_start[] = {0};
  trace.sequence_start = sequence_start;
  trace.experts16 = record.experts;
  trace.scores = record.scores;
  trace.ahead = 1;
  trace.predicted = record.predicted;
  trace.validate();

  ferry::Costs machine;  // a GPU of 900 GB/s behind 12 GB/s, and a processor of 40 GB/s
  machine.device = {.bytes_per_s = 900'000'000'000, .flops = 0, .start_ns = 10'000};
  machine.host = {.bytes_per_s = 40'000'000'000, .flops = 0, .start_ns = 5'000};
  machine.link_bytes_per_s = 12'000'000'000;
  machine.work = {{.dense_bytes = 64 << 20, .dense_operations = 0, .expert_operations = 0, .activation_bytes = 8192}};

  ferry::StackTable stacks;
  stacks.add<ferry::stacks::OnDemand>("on-demand");
  stacks.add<ferry::stacks::LruCache>("lru");
  stacks.add<ferry::stacks::CrossLayerLru>("cross-layer-lru");
  stacks.add<ferry::stacks::FerryDevice>("ferry-device");
  stacks.add<ferry::stacks::Ferry>("ferry");
  const std::uint64_t budget = (layers * own_slots + ferry::least_stream_slots) * expert_bytes;
  std::printf("%-16s %8.0f hits\n", "the engine", static_cast<double>(own_hits));
  for (const std::string& name : stacks.names()) {
    const auto config = stacks.configure(name, trace.model, budget);
    config->settings().costs = ferry::layer_costs(machine, trace.model);
    config->settings().copy_ns[static_cast<unsigned>(ferry::Precision::full)] = machine.copy(expert_bytes);
    ferry::VirtualClock clock(trace.model, ferry::VirtualClock::options(machine, false));
    const auto pipe = config->start(clock);
    const ferry::SimulationOptions options{.preload = config->traits().preloads};
    ferry::Replay<ferry::AnyPipeline> replay(*pipe, clock, trace.model, trace, machine, options);
    while (replay.step()) {
    }
    const ferry::Outcomes& o = replay.counters().of(ferry::Phase::decode);
    const ferry::PhaseClock& t = replay.clock(ferry::Phase::decode);
    std::printf("%-16s %8.0f hits, %5.1f GB copied, a token takes %5.2f ms and stalls %5.2f of them\n", name.c_str(),
                static_cast<double>(o.hits), static_cast<double>(o.bytes) / 1e9,
                static_cast<double>(t.total) / 1e6 / tokens, static_cast<double>(t.stall) / 1e6 / tokens);
    if (name == "lru" && o.hits != own_hits) return std::puts("not as the engine counted!"), 1;  // its own policy
  }
}
