/// @file
/// Recorded routing against a cache policy: how many requests of decode find their expert there.
#pragma once
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "ferry/cache/belady.hpp"
#include "ferry/core.hpp"
#include "ferry/stacks.hpp"
#include "ferry/trace/trace.hpp"
#include "support/policies.hpp"

namespace ferry::bench {

struct Hits {
  std::uint64_t requests = 0, hits = 0;
  [[nodiscard]] double percent() const {
    return requests == 0 ? 0 : 100.0 * static_cast<double>(hits) / static_cast<double>(requests);
  }
};

/// What a replay is made of. Slots are equal: one holds any expert. Sequences run one after another, each prompt in one
/// step.
struct Replay {
  const Trace& trace;
  Allotment allotment;
  std::vector<ExpertId> preload;  ///< best first: fills free slots before the first step
};

/// The trace's model with experts of one size, and room for the longest prompt.
inline ModelShape shape_of(const Trace& t) {
  ModelShape m = t.model;
  m.max_rows = 1;
  for (TraceSteps steps(t, 1, t.tokens); steps.next();) m.max_rows = std::max(m.max_rows, steps.tokens().size);
  m.expert_bytes = {ExpertBytes{0, 0, 0, 0, 64}};
  return m;
}

/// What a step asks a layer for: its distinct experts, in the order of their last use.
inline void asked(const Trace& t, View<const std::uint32_t> tokens, std::uint32_t layer,
                  std::vector<std::uint16_t>& out) {
  out.clear();
  for (const std::uint32_t token : tokens) {
    for (std::uint32_t i = 0; i < t.model.top_k; ++i) {
      const std::uint16_t e = t.expert(token, layer, i);
      if (e == no_expert) continue;
      if (tokens.size > 1) std::erase(out, e);
      out.push_back(e);
    }
  }
}

/// What the gate said of all experts to the rows of a step that were recorded in a layer: [rows, experts].
struct RecordedScores {
  std::vector<float> choice, weight;  ///< by which experts are chosen, and by which they weigh
  std::vector<std::uint32_t> rows;    ///< the recorded ones among the step's

  Scores of(const Trace& t, View<const std::uint32_t> tokens, std::uint16_t layer) {
    choice.clear();
    weight.clear();
    rows.clear();
    for (std::uint32_t i = 0; i < tokens.size; ++i) {
      if (t.expert(tokens[i], layer, 0) == no_expert) continue;
      rows.push_back(i);
      const float* chosen_by = t.choice_scores_of(tokens[i], layer);
      const float* weighed_by = t.scores_of(tokens[i], layer);
      choice.insert(choice.end(), chosen_by, chosen_by + t.model.experts);
      weight.insert(weight.end(), weighed_by, weighed_by + t.model.experts);
    }
    const auto view = [](const auto& all) { return View(all.data(), static_cast<std::uint32_t>(all.size())); };
    Scores scores{layer, view(choice), view(weight)};
    if (rows.size() < tokens.size) scores.rows = view(rows);
    return scores;
  }
};

/// Every use, in the order in which a replay makes it: Belady's future.
inline std::vector<ExpertId> uses_of(const Trace& t) {
  std::vector<ExpertId> uses;
  std::vector<std::uint16_t> experts;
  for (TraceSteps steps(t, 1, t.tokens); steps.next();) {
    for (std::uint16_t l = 0; l < t.model.layers; ++l) {
      asked(t, steps.tokens(), l, experts);
      for (const std::uint16_t e : experts) uses.push_back({l, e});
    }
  }
  return uses;
}

/// As cache simulators count: one request after another, each a hit, or a miss that is admitted at once; nothing is
/// barred, so that an expert may evict another of its own layer and step.
template <class Cache>
Hits by_request(const Replay& replay, const Cache& policy) {
  struct Slots {
    std::uint32_t count = 0, filled = 0;
    std::vector<std::uint32_t> keys;  ///< of the experts, by slot
    std::vector<std::uint8_t> nothing_barred;
  };
  const Trace& t = replay.trace;
  std::vector<test::Placed<Cache>> caches;
  std::vector<Slots> slots;
  std::vector<std::uint32_t> pool_of(t.model.layers);
  for (const Pool& p : replay.allotment.pools) {
    for (std::uint32_t l = 0; l < p.layers; ++l) pool_of[p.first_layer + l] = static_cast<std::uint32_t>(slots.size());
    caches.emplace_back(PoolShape{p.slots, p.first_layer, p.layers, t.model.experts}, policy);
    slots.push_back({p.slots, 0, std::vector<std::uint32_t>(p.slots), std::vector<std::uint8_t>(p.slots)});
  }
  std::vector<std::uint32_t> slot_of(std::size_t{t.model.layers} * t.model.experts, no_slot);

  auto put = [&](std::uint32_t pool, std::uint32_t slot, ExpertId id, bool demand) {
    const std::uint32_t key = std::uint32_t{id.layer} * t.model.experts + id.expert;
    slots[pool].keys[slot] = key;
    slot_of[key] = slot;
    caches[pool]->replace(slot, {id, Precision::full}, demand);
  };
  for (const ExpertId id : replay.preload) {
    Slots& s = slots[pool_of[id.layer]];
    if (s.filled < s.count) put(pool_of[id.layer], s.filled++, id, false);
  }

  Hits result;
  std::vector<std::uint16_t> experts;
  RecordedScores scores;
  for (TraceSteps steps(t, 1, t.tokens); steps.next();) {
    for (auto& c : caches) {
      if constexpr (part::Resets<Cache>) {
        if (steps.ended() > 0) c->reset();
      }
      if constexpr (part::BeginsStep<Cache>) c->begin_step(Step{steps.phase(), steps.sequences()});
    }
    for (std::uint16_t l = 0; l < t.model.layers; ++l) {
      const std::uint32_t pool = pool_of[l];
      Slots& s = slots[pool];
      auto& cache = caches[pool];
      if constexpr (part::ObservesScores<Cache>) cache->observe(scores.of(t, steps.tokens(), l));
      asked(t, steps.tokens(), l, experts);
      for (const std::uint16_t e : experts) {
        const Variant what{{l, e}, Precision::full};
        std::uint32_t& at = slot_of[std::uint32_t{l} * t.model.experts + e];
        const bool hit = at != no_slot;
        if (steps.phase() == Phase::decode) {
          ++result.requests;
          result.hits += hit ? 1 : 0;
        }
        if constexpr (part::SeesUse<Cache>) cache->used(what);
        cache->touch(what, at);
        if (hit || s.count == 0) continue;
        std::uint32_t slot = s.filled;
        if (slot < s.count) {
          ++s.filled;
        } else {
          slot = cache->victim(what, {s.nothing_barred.data(), 1});
          if (slot == no_slot) continue;  // refused
          slot_of[s.keys[slot]] = no_slot;
        }
        put(pool, slot, what.id, true);
      }
    }
  }
  return result;
}

/// As the pipeline works: the core plans each layer of each step, what is there is touched before what is missing comes
/// in, and no expert of a step evicts another. Every copy has landed before the next call.
template <class Cache>
Hits by_step(const Replay& replay, const Cache& policy) {
  using S = Stack<NoPrediction, Cache, FixedPrecision, stacks::LoadEverything, TopK>;
  constexpr Ticket last{~std::uint64_t{0}};
  constexpr Seen all_landed{last, last, last};
  const Trace& t = replay.trace;
  CoreConfig<S> config;
  config.model = shape_of(t);
  config.allotment = replay.allotment;
  config.cache = policy;
  const std::size_t bytes = Core<S>::storage_bytes(config);
  const std::unique_ptr<std::byte[], void (*)(std::byte*)> block(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{storage_alignment})),
      [](std::byte* b) { ::operator delete (b, std::align_val_t{storage_alignment}); });
  Core<S>& core = *Core<S>::create(block.get(), config);

  std::vector<Variant> preload;
  for (const ExpertId id : replay.preload) preload.push_back({id, Precision::full});
  for (View<const Variant> rest{preload.data(), static_cast<std::uint32_t>(preload.size())}; rest.size > 0;) {
    const std::uint32_t n = core.preload(rest, all_landed);
    rest = rest.part(n, rest.size - n);
  }
  RecordedScores scores;
  std::vector<Route> routes;
  for (TraceSteps steps(t, 1, t.tokens); steps.next();) {
    if (steps.ended() > 0) core.end_sequence(0);
    core.begin_step({steps.phase(), steps.sequences()});
    for (std::uint16_t l = 0; l < t.model.layers; ++l) {
      Plan plan;
      if constexpr (part::needs_full_scores<Cache>()) {
        const Scores recorded = scores.of(t, steps.tokens(), l);
        if (recorded.select.size == 0) continue;
        plan = core.plan(recorded, all_landed);
      } else {
        routes.clear();
        for (const std::uint32_t token : steps.tokens()) {
          for (std::uint32_t i = 0; i < t.model.top_k; ++i) routes.push_back({t.expert(token, l, i), 1.0F, no_expert});
        }
        plan = core.plan(l, {routes.data(), static_cast<std::uint32_t>(routes.size())}, {}, all_landed);
      }
      core.done(plan.resident);
      core.done(plan.arriving);
      core.finish(l, {}, all_landed);
    }
  }
  const Outcomes& decode = core.counters().of(Phase::decode);
  return {decode.requests, decode.hits};
}

/// The same in bytes, as BigMoeOnEdge's route-replay.py defines it: a step's misses of a layer come in whatever the
/// budget, then experts that this layer does not need leave until the budget holds. One pool over all layers, or one a
/// layer with an equal share each. Counts all of prefill's distinct experts, too.
struct ByteBudget {
  std::uint64_t bytes = 0;
  bool per_layer = false;
};
struct ByteHits {
  Hits all, decode;
  std::uint64_t read_bytes = 0;
};

template <class Cache>
ByteHits by_bytes(const Trace& t, const ByteBudget& budget, const Cache& policy) {
  constexpr std::uint8_t free = 1, needed = 2;
  struct Slots {
    std::vector<std::uint8_t> barred;
    std::vector<ExpertId> holds;
    std::uint64_t used = 0;
  };
  const auto layers_each = static_cast<std::uint16_t>(budget.per_layer ? 1 : t.model.layers);
  const auto pools = static_cast<std::uint16_t>(t.model.layers / layers_each);
  const std::uint32_t most = std::uint32_t{layers_each} * t.model.experts;  // bytes run out, slots never do
  std::vector<test::Placed<Cache>> caches;
  for (std::uint16_t p = 0; p < pools; ++p)
    caches.emplace_back(PoolShape{most, p, layers_each, t.model.experts}, policy);
  std::vector<Slots> slots(pools, {std::vector<std::uint8_t>(most, free), std::vector<ExpertId>(most), 0});
  std::vector<std::uint32_t> slot_of(std::size_t{t.model.layers} * t.model.experts, no_slot);

  ByteHits result;
  std::vector<std::uint16_t> experts;
  for (TraceSteps steps(t, 1, t.tokens); steps.next();) {
    for (std::uint16_t l = 0; l < t.model.layers; ++l) {
      const std::uint32_t pool = budget.per_layer ? l : 0;
      Slots& s = slots[pool];
      auto& cache = caches[pool];
      asked(t, steps.tokens(), l, experts);
      for (const std::uint16_t e : experts) {
        const Variant what{{l, e}, Precision::full};
        std::uint32_t& at = slot_of[std::uint32_t{l} * t.model.experts + e];
        const bool hit = at != no_slot;
        for (Hits* count : {&result.all, &result.decode}) {
          if (count == &result.decode && steps.phase() == Phase::prefill) continue;
          ++count->requests;
          count->hits += hit ? 1 : 0;
        }
        if constexpr (part::SeesUse<Cache>) cache->used(what);
        cache->touch(what, at);
        if (!hit) {
          at = 0;
          while (s.barred[at] != free) ++at;
          s.holds[at] = what.id;
          s.used += t.model.bytes(l, Precision::full);
          result.read_bytes += t.model.bytes(l, Precision::full);
          cache->replace(at, what, true);
        }
        s.barred[at] = needed;
      }
      while (s.used > budget.bytes / pools) {
        // A victim for an expert that is resident already: as nothing comes in now, the policy cannot refuse.
        std::uint32_t there = 0;
        while (there < most && s.barred[there] != 0) ++there;
        if (there == most) break;
        const std::uint32_t slot = cache->victim({s.holds[there], Precision::full}, {s.barred.data(), free | needed});
        const ExpertId gone = s.holds[slot];
        s.used -= t.model.bytes(gone.layer, Precision::full);
        s.barred[slot] = free;
        slot_of[std::size_t{gone.layer} * t.model.experts + gone.expert] = no_slot;
        if constexpr (part::Forgets<Cache>) cache->forget(slot);
      }
      for (std::uint8_t& b : s.barred) b = b == free ? free : 0;
    }
  }
  return result;
}

}  // namespace ferry::bench
