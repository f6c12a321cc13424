// The virtual clock and the copy thread agree: stepped in the clock's order, the thread carries out exactly the same
// decisions, and what lies in its slots at the end are the bytes of the experts that the core believes there.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "ferry/link/host_thread.hpp"
#include "ferry/sim/simulation.hpp"
#include "ferry/stacks.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// A virtual clock that makes a HostThread carry the same copies, and says nothing has landed before it has on both.
class Stepped : public VirtualClock {
 public:
  Stepped(const ModelShape& model, const Options& options, HostThread& thread)
      : VirtualClock(model, options), thread_(thread) {}

  void submit(const Copy& copy) noexcept {
    VirtualClock::submit(copy);
    thread_.submit(copy);
  }
  void drop(Ticket ticket) noexcept {
    VirtualClock::drop(ticket);
    thread_.drop(ticket);
  }
  Seen seen() noexcept {
    const Seen s = VirtualClock::seen();
    if (s.demand_landed != Ticket::none) thread_.wait(s.demand_landed);
    auto last =
        static_cast<std::uint64_t>(s.prefetch_landed);  // "up to here": the prefetch is the odd one there or before
    if (last > 1) thread_.wait(Ticket{last - (last % 2 == 0 ? 1 : 0)});
    return s;
  }
  void fence(Fence fence) noexcept {
    VirtualClock::fence(fence);
    thread_.fence(fence);
  }
  void wait(Ticket ticket) {
    VirtualClock::wait(ticket);
    thread_.wait(ticket);
  }

 private:
  HostThread& thread_;
};

/// A trace of random scores, and predictions that are often right.
struct RandomTrace {
  std::vector<std::uint32_t> starts;
  std::vector<std::uint8_t> phase, experts;
  std::vector<float> scores, predicted, partial;
  Trace trace;

  RandomTrace(Random& random, std::uint16_t layers, std::uint16_t each, std::uint16_t k) {
    trace.name = "random";
    trace.model.layers = layers;
    trace.model.experts = each;
    trace.model.top_k = k;
    trace.model.max_rows = 16;
    trace.model.renormalise = Renormalise::yes;
    trace.model.expert_bytes = {ExpertBytes{0, 192, 320, 576, 1024}};
    for (std::uint32_t s = random.between(3, 5); s > 0; --s) {
      starts.push_back(static_cast<std::uint32_t>(phase.size()));
      for (std::uint32_t t = random.between(1, 9); t > 0; --t) phase.push_back(0);
      for (std::uint32_t t = random.between(5, 25); t > 0; --t) phase.push_back(1);
    }
    trace.tokens = static_cast<std::uint32_t>(phase.size());
    const std::size_t cells = std::size_t{trace.tokens} * layers;
    for (std::size_t c = 0; c < cells; ++c) {
      float sum = 0;
      const std::size_t at = scores.size();
      for (std::uint16_t e = 0; e < each; ++e) {
        const float x = random.unit();
        scores.push_back(x * x * x + 0.001F);
        sum += scores.back();
      }
      for (std::uint16_t e = 0; e < each; ++e) scores[at + e] /= sum;
      std::vector<Route> best(k);
      detail::best_of(scores.data() + at, each, k, best.data());
      for (const Route& r : best) experts.push_back(static_cast<std::uint8_t>(r.expert));
    }
    auto predict = [&](std::size_t token, std::size_t layer, std::vector<float>& to) {
      for (std::uint16_t e = 0; e < each; ++e) {
        const float real = layer < layers ? scores[(token * layers + layer) * each + e] : 0.0F;
        to.push_back(random.chance(15) ? random.unit() / 4.0F : real);
      }
    };
    for (std::size_t t = 0; t < trace.tokens; ++t) {
      for (std::size_t l = 0; l < layers; ++l) {
        predict(t, l + 1, partial);
        for (std::size_t d = 1; d <= 3; ++d) predict(t, l + d, predicted);
      }
    }
    trace.sequence_start = starts;
    trace.phase = phase;
    trace.experts8 = experts;
    trace.scores = scores;
    trace.ahead = 3;
    trace.predicted = predicted;
    trace.partial = partial;
    trace.validate();
  }
};

Costs costs_of(Random& random) {
  Costs c;
  c.device.start_ns = random.between(500, 3'000);
  c.layer_ns = random.between(1'000, 9'000);
  c.host = {0, 1'000'000'000, random.between(0, 500)};
  c.work = {{0, 0, random.between(500, 20'000)}};
  c.link_bytes_per_s = 1024ULL * 1'000'000 / random.between(1, 60);  // an expert takes 1 to 60 us
  c.link_latency_ns = random.between(0, 300);
  return c;
}

template <class S>
void agree(const char* name) {
  Random random(11);
  std::uint32_t compared = 0;
  for (int trial = 0; trial < 4; ++trial) {
    CAPTURE(name);
    CAPTURE(trial);
    const auto layers = static_cast<std::uint16_t>(random.between(2, 4));
    const auto each = static_cast<std::uint16_t>(random.between(4, 12));
    const RandomTrace made(random, layers, each, static_cast<std::uint16_t>(random.between(1, 3)));
    const Costs costs = costs_of(random);
    CoreConfig<S> config;
    config.model = made.trace.model;
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      config.copy_ns[p] = costs.copy(config.model.bytes(0, static_cast<Precision>(p)));
    }
    const std::uint64_t budget = config.model.all_bytes() * random.between(30, 60) / 100;
    if constexpr (requires { typename S::Layout; }) {
      S::set_up(config, budget, {1});  // a shallow layer, or a percent of low precision
    } else {
      S::set_up(config, budget);
    }
    SimulationOptions options;
    options.batch = random.between(1, 3);
    options.prefill_chunk = random.between(3, 16);
    options.preload = traits_of<S>().preloads;
    options.log = true;

    Simulation<S> alone(config, made.trace, costs, options);
    while (alone.step()) {
    }

    // Every expert has bytes of its own.
    std::vector<std::byte> bytes(std::size_t{layers} * each * precision_count * 1024);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i / 192 * 31 + i) % 251);
    auto source = [&](Variant v) -> View<const std::byte> {
      const std::size_t at =
          ((std::size_t{v.id.layer} * each + v.id.expert) * precision_count + static_cast<unsigned>(v.precision)) *
          1024;
      return {bytes.data() + at, static_cast<std::uint32_t>(config.model.bytes(v.id.layer, v.precision))};
    };
    SlotMemory memory(config.allotment, source, true);
    HostThread thread(memory, HostThread::Options{});
    Simulation<S, Stepped> beside(config, made.trace, costs, options, thread);
    while (beside.step()) {
    }
    thread.drain();

    CHECK(std::memcmp(&alone.counters(), &beside.counters(), sizeof(Counters)) == 0);
    for (const Phase p : {Phase::prefill, Phase::decode}) {
      CHECK(alone.clock(p).total == beside.clock(p).total);
      CHECK(alone.clock(p).stall == beside.clock(p).stall);
    }
    REQUIRE(alone.spans().size() == beside.spans().size());
    std::size_t different = 0;
    for (std::size_t i = 0; i < alone.spans().size(); ++i) {
      const Span &a = alone.spans()[i], &b = beside.spans()[i];
      different += a.begin_ns == b.begin_ns && a.end_ns == b.end_ns && a.what == b.what && a.ticket == b.ticket ? 0 : 1;
    }
    CHECK(different == 0);
    CHECK(beside.counters().of(Phase::decode).requests > 0);

    const Residency& there = beside.core().residency();
    for (std::uint32_t slot = 0; slot < config.allotment.slots(); ++slot) {
      const auto& s = there.slot(slot);
      if (s.state != State::resident || there.find(s.what) != slot) continue;
      const View<const std::byte> right = source(s.what);
      CHECK(std::memcmp(memory.slot(slot), right.data, right.size) == 0);
      ++compared;
    }
  }
  if (ferry::part::caches<typename S::cache>()) CHECK(compared > 0);
}

}  // namespace

TEST_CASE("stepped in the clock's order, the host thread does the same, and the right bytes lie in its slots") {
  agree<stacks::OnDemand>("on-demand");
  agree<stacks::LruCache>("lru");
  agree<stacks::CrossLayerLru>("cross-layer-lru");
  agree<stacks::MoeInfinity>("moe-infinity");
  agree<stacks::HybriMoe>("hybrimoe");
  agree<stacks::Fate>("fate");
  agree<stacks::Hobbit>("hobbit");
  agree<stacks::HobbitCooperative>("hobbit-cooperative");
  agree<stacks::Ferry>("ferry");
  agree<stacks::ImportanceDriven>("importance-driven");
}
