// The virtual clock, the copy thread and CUDA agree. If they are stepped in the clock's order, the others carry out exactly the
// same decisions, and at the end their slots hold the bytes of the experts that the core believes are there.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "emulated_cuda/emulated_cuda.hpp"
#include "ferry/link/cuda_stream.hpp"
#include "ferry/link/host_thread.hpp"
#include "ferry/sim/simulation.hpp"
#include "ferry/stacks.hpp"
#include "support/pinned.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

/// A virtual clock that passes its copies on to another link. It reports a copy as landed only once it has landed on both, or
/// once the device's work waits for it.
template <class Other>
class Stepped : public VirtualClock {
 public:
  Stepped(const ModelShape& model, const Options& options, Other& other)
      : VirtualClock(model, options), other_(other) {}

  void submit(const Copy& copy) noexcept {
    VirtualClock::submit(copy);
    other_.submit(copy);
  }
  void drop(Ticket ticket) noexcept {
    VirtualClock::drop(ticket);
    other_.drop(ticket);
  }
  Seen seen() noexcept {
    const Seen s = VirtualClock::seen();
    if (s.demand_landed != Ticket::none) other_.wait(s.demand_landed);
    auto last = static_cast<std::uint64_t>(s.prefetch_landed);  // prefetches have the odd tickets
    if (last > 1) other_.wait(Ticket{last - (last % 2 == 0 ? 1 : 0)});
    return s;
  }
  void fence(Fence fence) noexcept {
    VirtualClock::fence(fence);
    other_.fence(fence);
  }
  void wait(Ticket ticket) {
    VirtualClock::wait(ticket);
    other_.wait(ticket);
  }

 private:
  Other& other_;
};

/// A thread that copies, and its slots.
struct ThreadBeside {
  ThreadBeside(const Allotment& slots, const SlotMemory::Source& source) : memory(slots, source, true) {}
  [[nodiscard]] bool holds(std::uint32_t slot, View<const std::byte> right) const {
    return std::memcmp(memory.slot(slot), right.data, right.size) == 0;
  }
  SlotMemory memory;
  HostThread link{memory, HostThread::Options{}};
};

/// CUDA, and its slots as its device sees them.
struct CudaBeside {
  CudaBeside(const Allotment& slots, const SlotMemory::Source& source)
      : memory(slots, source, {.pinned = false, .poison = true}) {}
  [[nodiscard]] bool holds(std::uint32_t slot, View<const std::byte> right) const {
    compute.read(seen, 0, memory.slot(slot), right.size);
    compute.synchronize();
    return std::memcmp(seen.data(), right.data, right.size) == 0;
  }
  Stream compute;
  Pinned seen{1024};
  CudaSlots memory;
  CudaStream link{memory, compute, {.ahead_bytes = 2048}};
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

template <class S, class Beside>
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
    Beside other(config.allotment, source);
    Simulation<S, Stepped<decltype(other.link)>> beside(config, made.trace, costs, options, other.link);
    while (beside.step()) {
    }
    other.link.drain();

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
      CHECK(other.holds(slot, source(s.what)));
      ++compared;
    }
  }
  if (ferry::part::caches<typename S::cache>()) CHECK(compared > 0);
}

template <class Beside>
void all_agree() {
  agree<stacks::OnDemand, Beside>("on-demand");
  agree<stacks::LruCache, Beside>("lru");
  agree<stacks::CrossLayerLru, Beside>("cross-layer-lru");
  agree<stacks::MoeInfinity, Beside>("moe-infinity");
  agree<stacks::HybriMoe, Beside>("hybrimoe");
  agree<stacks::Fate, Beside>("fate");
  agree<stacks::Hobbit, Beside>("hobbit");
  agree<stacks::HobbitCooperative, Beside>("hobbit-cooperative");
  agree<stacks::Ferry, Beside>("ferry");
  agree<stacks::ImportanceDriven, Beside>("importance-driven");
}

}  // namespace

TEST_CASE("stepped in the clock's order, the host thread does the same, and the right bytes lie in its slots") {
  all_agree<ThreadBeside>();
}

TEST_CASE("stepped in the clock's order, CUDA does the same, and the right bytes lie in its slots") {
  for (std::uint64_t seed = 1; seed < 3; ++seed) {  // with other orders of the streams
    emulated::Options options;
    options.seed = seed;
    options.chunk_bytes = 64;
    emulated::reset(options);
    all_agree<CudaBeside>();
  }
}
