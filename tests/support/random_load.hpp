/// @file
/// Drives a pipeline with random models, budgets, routings and interruptions, under the checker's eyes.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "ferry/link/host_thread.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "support/invariant_checker.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

namespace ferry::test {

// Policies for tests only, which reach parts of the core that the first stacks do not use.

/// High, low, or skip, by a hash of the expert: the same each time.
struct MixedPrecision {
  FERRY_HD void select(Phase /*phase*/, bool /*demand*/, View<Request> requests) const noexcept {
    for (Request& r : requests) {
      const std::uint32_t h = (r.want.id.expert * 7U + r.want.id.layer * 3U) % 10;
      if (r.state == State::absent || r.state == State::queued) {
        r.want.precision = h < 5 ? Precision::full : h < 8 ? Precision::int4 : Precision::skip;
      }
    }
  }
  FERRY_HD std::uint8_t precisions() const noexcept { return 1U << 0U | 1U << 2U | 1U << 4U; }
};

/// In decode the host computes the last third of the misses.
struct SomeOnHost {
  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    return phase == Phase::decode ? misses.size - misses.size / 3 : misses.size;
  }
};

/// The last one first.
struct Reversed {
  FERRY_HD static void order(Phase /*phase*/, bool /*demand*/, View<Request> requests) noexcept {
    for (std::uint32_t i = 0; i < requests.size / 2; ++i) {
      const Request r = requests[i];
      requests[i] = requests[requests.size - 1 - i];
      requests[requests.size - 1 - i] = r;
    }
  }
};

using LossyStack = Stack<CrossLayerGate, Lru, MixedPrecision, Schedule<NoLimit, Reversed, SomeOnHost>, TopK>;

/// What a core was told, and what it answered, for replays.
struct Log {
  std::vector<Seen> seen;                            ///< in order of the calls of Link::seen
  std::uint64_t commands = 14695981039346656037ULL;  ///< FNV-1a over every drop and submit

  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8U) commands = (commands ^ (value & 0xffU)) * 1099511628211ULL;
  }
  void add(const Copy& c) {
    add(static_cast<std::uint64_t>(c.ticket));
    add(std::uint64_t{c.what.id.layer} << 32U | std::uint64_t{c.what.id.expert} << 16U |
        static_cast<std::uint64_t>(c.what.precision));
    add(c.slot);
    add(static_cast<std::uint64_t>(c.after));
    add(c.demand ? 1 : 0);
  }
};

/// Passes everything on to a link, and records what matters.
template <class LinkT>
class Recorded {
 public:
  explicit Recorded(LinkT& link) : link_(link) {}

  void submit(const Copy& c) noexcept {
    log.add(c);
    if (preloads != nullptr) preloads->push_back(c);
    link_.submit(c);
    if (c.demand) begun[c.ticket] = link_.seen().prefetch_begun;  // taken once the copy is in the queue
  }
  void drop(Ticket t) noexcept {
    log.add(static_cast<std::uint64_t>(t));
    link_.drop(t);
  }
  Seen seen() noexcept {
    log.seen.push_back(link_.seen());
    return log.seen.back();
  }
  void fence(Fence f) noexcept { link_.fence(f); }
  void wait(Ticket t) { link_.wait(t); }

  Log log;
  std::map<Ticket, Ticket> begun;         ///< by demand ticket: how far prefetches had begun at its submission
  std::vector<Copy>* preloads = nullptr;  ///< where to note copies

 private:
  LinkT& link_;
};

/// Answers as another link did, so the same core must give the same commands.
class Replayed {
 public:
  explicit Replayed(const std::vector<Seen>& seen) : seen_(seen) {}
  void submit(const Copy& c) noexcept { log.add(c); }
  void drop(Ticket t) noexcept { log.add(static_cast<std::uint64_t>(t)); }
  Seen seen() noexcept { return seen_[next_++]; }
  void fence(Fence /*f*/) noexcept {}
  void wait(Ticket /*t*/) {}

  Log log;

 private:
  const std::vector<Seen>& seen_;
  std::size_t next_ = 0;
};

/// One random model with its slots, as a pure function of the seed.
template <class StackT>
struct Scenario {
  explicit Scenario(std::uint64_t seed) : random(seed) {
    const unsigned set = typename StackT::precision{}.precisions();
    const bool mixed = (set & 0x14U) == 0x14U;   // full and INT4: two pools over all layers, as HOBBIT has
    const bool hybrid = (set & 0x06U) == 0x06U;  // INT4 and INT2 share their slots, as in Fate
    const auto experts = static_cast<std::uint16_t>(random.between(2, 12));
    const auto layers = static_cast<std::uint16_t>(random.between(1, 5));  // one draw a statement: the order of
    const auto top_k = static_cast<std::uint16_t>(random.between(1, experts < 4 ? experts : 4));  // arguments is open
    config.model = model(layers, experts, top_k, 6, random.between(1, 4) * 64, mixed || hybrid ? 32 : 0);
    if (random.chance(30)) {  // layers that differ, up to the model's own numbers
      for (std::uint16_t l = 0; l < layers; ++l) {
        config.model.layer_experts.push_back(static_cast<std::uint16_t>(random.between(1, experts)));
        const std::uint16_t most = std::min(top_k, config.model.layer_experts.back());
        config.model.layer_top_k.push_back(static_cast<std::uint16_t>(random.between(1, most)));
      }
    }
    if (hybrid) config.model.expert_bytes[0][static_cast<unsigned>(Precision::int2)] = 16;
    config.model.renormalise = renormalise_if(random.chance(50));
    for (Nanoseconds& ns : config.copy_ns) ns = random.below(200);
    if constexpr (part::WeighsLayers<typename StackT::scheduler>) {  // so that every way of placing a layer is tried
      if (random.chance(80)) {
        const Nanoseconds device = random.between(1, 100), host = random.between(1, 100);
        for (Nanoseconds& ns : config.costs.device_ns) ns = device;
        for (Nanoseconds& ns : config.costs.host_ns) ns = host;
        config.costs.host_beside_copies = random.between(500, 1000);
        config.costs.link_beside_host = random.between(500, 1000);
      }
    }
    if (random.chance(30)) config.transient_prefill_rows = random.between(1, 4);
    const std::uint64_t all = config.model.all_bytes();
    const std::uint64_t least = 2 * ModelShape::slot_bytes(largest_bytes(config.model));
    budget = least + random.below(static_cast<std::uint32_t>(all + 64));
    if (!part::caches<typename StackT::cache>()) {
      config.allotment = stream_only(config.model, budget);
    } else if (hybrid) {
      const PrecisionSet both = Precision::int4 | Precision::int2;
      budget = 128 + random.below(static_cast<std::uint32_t>(3U * layers * experts * 64));
      const std::uint32_t shallow = random.below(layers + 1U);
      config.allotment = shallow_favouring(config.model, budget, shallow, both, random.below(5));
    } else if (mixed) {
      const std::uint64_t low = (budget - least) / 4 / 64,
                          high = (budget - least - low * 64) / config.model.bytes(0, Precision::full);
      config.allotment.pools = {
          {0, config.model.layers, part::bit(Precision::full), static_cast<std::uint32_t>(high), least / 2},
          {0, config.model.layers, part::bit(Precision::int4), static_cast<std::uint32_t>(low), 64}};
      config.allotment.stream_slots = 2;
      config.allotment.stream_slot_bytes = least / 2;
    } else {
      config.allotment = random.chance(50) ? one_pool(config.model, budget) : pool_per_layer(config.model, budget);
    }
    check_budget(budget, config.allotment);
    coarse = random.chance(30);
    preload = random.chance(20);
  }

  Random random;
  CoreConfig<StackT> config;
  std::uint64_t budget = 0;
  bool coarse = false, preload = false;
};

/// The bytes of a made-up expert: no two variants share one.
inline std::vector<std::byte> expert_content(Variant v, std::uint64_t bytes) {
  std::vector<std::byte> content(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<std::byte>(
        (v.id.layer * 61U + v.id.expert * 17U + static_cast<unsigned>(v.precision) * 5U + i) & 0x7fU);
  }
  return content;
}

/// The six outcomes sum to what was asked for, and misses bring no more bytes than were copied.
inline void check_counts(const Counters& c, const ModelShape& m) {
  for (const Outcomes& o : c.phase) {
    if (o.hits + o.late_hits + o.misses + o.substituted + o.skipped + o.host_computed != o.requests) {
      throw std::logic_error("outcomes do not sum to the requests");
    }
    if (o.miss_bytes > o.misses * largest_bytes(m)) throw std::logic_error("misses of more bytes than experts have");
  }
  if (c.prefetch.used > c.prefetch.issued) throw std::logic_error("more prefetches used than issued");
}

/// Runs `steps` random steps. `compute(task)` stands for computing a task; `pass(ns)` lets time go by.
/// Checks each call if `checker` is given.
template <class StackT, class LinkT, class Compute, class Pass>
void drive(Scenario<StackT>& s, OffloadPipeline<StackT, LinkT>& pipe, std::uint32_t steps, InvariantChecker* checker,
           Compute&& compute, Pass&& pass) {
  Random& random = s.random;
  const ModelShape& m = s.config.model;
  const auto& core = pipe.core();
  if (s.preload) {
    std::vector<Copy> copies;
    if constexpr (requires { pipe.link().preloads; }) pipe.link().preloads = &copies;
    pipe.preload();
    if constexpr (requires { pipe.link().preloads; }) pipe.link().preloads = nullptr;
    if (checker != nullptr) checker->preload({copies.data(), static_cast<std::uint32_t>(copies.size())});
  }
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Phase phase = random.chance(25) ? Phase::prefill : Phase::decode;
    const std::uint32_t rows = random.between(1, m.max_rows);
    pipe.begin_step(StepOf(phase, rows));
    if (checker != nullptr) checker->begin_step(phase, rows);
    for (std::uint16_t l = 0; l < m.layers; ++l) {
      const auto real = random.scores(std::size_t{rows} * m.experts, s.coarse);
      pass(random.below(400));
      const Plan plan = pipe.plan(scores(l, real));
      if (checker != nullptr) checker->plan(l, plan, core.commands());
      for (std::uint32_t n = random.below(3); n > 0; --n) {
        const auto ahead = static_cast<std::uint16_t>((l + random.between(1, m.layers)) % m.layers);
        const auto predicted = random.scores(std::size_t{rows} * m.experts, s.coarse);
        pipe.look_ahead(scores(ahead, predicted));
        if (checker != nullptr) checker->look_ahead(core.commands());
      }
      if (random.chance(2)) {  // something went wrong in the engine
        const Fence fence = core.next_fence();
        pipe.abandon();
        if (checker != nullptr) checker->finish(fence, core.commands());
        break;
      }
      for (const Task& t : plan.resident) compute(t);
      const bool needs_done = plan.arriving.size > 0 && plan.arriving[plan.arriving.size - 1].freed_by != no_task;
      const bool calls_done = needs_done || random.chance(70);
      if (calls_done && plan.resident.size > 0) {
        const Fence fence = core.next_fence();
        pipe.done(plan.resident);
        if (checker != nullptr) checker->done(plan.resident, fence, core.commands());
      }
      for (const Task& t : plan.arriving) {
        pipe.wait(t);
        compute(t);
        if (!calls_done) continue;
        const Fence fence = core.next_fence();
        pipe.done(t);
        if (checker != nullptr) checker->done({&t, 1}, fence, core.commands());
      }
      const Fence fence = core.next_fence();
      pipe.finish(l, {10, 5, 20, 50});
      if (checker != nullptr) checker->finish(fence, core.commands());
    }
    if (checker != nullptr) check_counts(pipe.counters(), m);
    for (std::uint16_t pool = 0; pool < s.config.allotment.pools.size(); ++pool) {
      if (const std::string what = broken(core.cache(pool)); !what.empty()) throw std::logic_error(what);
    }
    if (random.chance(3)) pipe.end_sequence(0);
  }
}

}  // namespace ferry::test
