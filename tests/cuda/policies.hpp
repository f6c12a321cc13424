/// @file
/// Every policy, and the core of every stack, under one load that is drawn alike on host and device.
///
/// The answers must be the same bit for bit. Scores are multiples of 2^-10 and alphas are 1/4, so that the products
/// of the two are exact; sums and quotients are rounded alike on both (nvcc's default is --prec-div=true). Where a
/// product is added to something, nvcc contracts the two into one rounding, and a host compiler may. That only happens
/// in detail::fixed_score, whose product is exact. A row's scores are positive, so that no weights are divided by 0.
#pragma once
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "ferry/cache/arc.hpp"
#include "ferry/cache/belady.hpp"
#include "ferry/cache/fifo.hpp"
#include "ferry/cache/fld.hpp"
#include "ferry/cache/lfu.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/load_on_demand.hpp"
#include "ferry/cache/lru.hpp"
#include "ferry/cache/multidimensional.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/score_average.hpp"
#include "ferry/cache/score_window.hpp"
#include "ferry/cache/sieve.hpp"
#include "ferry/cache/static.hpp"
#include "ferry/core.hpp"
#include "ferry/precision/fixed.hpp"
#include "ferry/precision/importance_thresholds.hpp"
#include "ferry/precision/popularity_hybrid.hpp"
#include "ferry/predictor/activation_matrix.hpp"
#include "ferry/predictor/activation_path.hpp"
#include "ferry/predictor/cross_layer_gate.hpp"
#include "ferry/predictor/every_expert.hpp"
#include "ferry/predictor/none.hpp"
#include "ferry/predictor/oracle.hpp"
#include "ferry/predictor/partial_hidden.hpp"
#include "ferry/predictor/stacked_gates.hpp"
#include "ferry/router/expert_cache.hpp"
#include "ferry/router/top_k.hpp"
#include "ferry/stacks.hpp"

namespace ferry::test::device {

inline constexpr std::uint16_t layers = 6, experts = 8, top_k = 2;
inline constexpr std::uint32_t max_rows = 4, pool_slots = 6;
inline constexpr std::uint32_t load_steps = 64;

/// Knuth's MMIX generator.
class Dice {
 public:
  FERRY_HD std::uint32_t below(std::uint32_t n) noexcept {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state_ >> 33U) % n;
  }
  FERRY_HD bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }
  FERRY_HD std::uint16_t expert() noexcept { return static_cast<std::uint16_t>(below(experts)); }
  FERRY_HD Phase phase() noexcept { return one_in(3) ? Phase::prefill : Phase::decode; }

 private:
  std::uint64_t state_ = 1;
};

/// 64-bit FNV-1a.
class Digest {
 public:
  template <class T>
  FERRY_HD void add(const T& value) noexcept {
    static_assert(std::has_unique_object_representations_v<T> || std::is_same_v<T, float>);
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (const unsigned char b : bytes) value_ = (value_ ^ b) * 0x100000001b3U;
  }
  FERRY_HD void add(const Variant& v) noexcept {
    add(v.id);
    add(v.precision);
  }
  FERRY_HD void add(View<const Route> routes) noexcept {
    for (const Route& r : routes) {
      add(r.expert);
      add(r.weight);
      add(r.instead_of);
    }
  }
  FERRY_HD void add(View<const Request> requests) noexcept {
    for (const Request& r : requests) {
      add(r.want);
      add(r.rows);
      add(r.importance);
      add(r.unimportance);
      add(r.confidence);
    }
  }
  FERRY_HD void add(View<const Task> tasks) noexcept {
    for (const Task& t : tasks) {
      add(t.what);
      add(t.slot);
      add(t.first);
      add(t.rows);
      add(t.freed_by);
      add(t.ready);
      add(t.transient);
    }
  }
  FERRY_HD void add(const Plan& plan) noexcept {
    add(plan.routes);
    for (const std::uint32_t a : plan.assignments) add(a);
    add(plan.resident);
    add(plan.arriving);
    add(plan.host);
  }
  FERRY_HD void add(const Commands& commands) noexcept {
    for (const Ticket t : commands.drop) add(t);
    for (const Copy& c : commands.submit) {
      add(c.ticket);
      add(c.what);
      add(c.slot);
      add(c.after);
      add(c.demand);
    }
  }
  [[nodiscard]] FERRY_HD std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

/// A link without bytes: copies land in the order of their tickets, when the dice decide or when somebody waits for them.
class PretendedLink {
 public:
  FERRY_HD void submit(View<const Copy> copies) noexcept {
    for (const Copy& c : copies) (c.demand ? demand_ : prefetch_) = c.ticket;
  }
  FERRY_HD void wait(Ticket ticket) noexcept {
    if (is_prefetch(ticket)) {
      raise(seen_.prefetch_begun, ticket);
      raise(seen_.prefetch_landed, ticket);
    } else {
      raise(seen_.demand_landed, ticket);
    }
  }
  FERRY_HD Seen seen(Dice& dice) noexcept {
    advance(seen_.demand_landed, demand_, dice);
    if (seen_.demand_landed == demand_) advance(seen_.prefetch_begun, prefetch_, dice);
    advance(seen_.prefetch_landed, seen_.prefetch_begun, dice);
    return seen_;
  }

 private:
  FERRY_HD static void raise(Ticket& seen, Ticket to) noexcept {
    if (seen < to) seen = to;
  }
  FERRY_HD static void advance(Ticket& seen, Ticket last, Dice& dice) noexcept {
    const std::uint64_t from = static_cast<std::uint64_t>(seen);
    seen = Ticket{from + dice.below(static_cast<std::uint32_t>(static_cast<std::uint64_t>(last) - from) + 1)};
  }

  Seen seen_;
  Ticket demand_ = Ticket::none, prefetch_ = Ticket::none;  ///< submitted last
};

/// What is carried over from step to step besides the subject's own state.
struct Load {
  Dice dice;
  Digest digest;
  PretendedLink link;
  std::uint32_t steps = 0;
  Variant holds[pool_slots];     ///< of a cache policy's pool
  bool filled[pool_slots] = {};  ///< slots that are not filled are free
};
static_assert(std::is_trivially_copyable_v<Load>);

/// Gate scores of some rows.
class Rows {
 public:
  FERRY_HD Rows(Dice& dice, std::uint32_t rows) noexcept : size_(rows * experts) {
    const std::uint32_t values = dice.one_in(3) ? 8 : 1024;  // 8: many ties
    for (std::uint32_t i = 0; i < size_; ++i) {
      values_[i] = static_cast<float>(1 + dice.below(values)) / static_cast<float>(values);
    }
  }
  FERRY_HD Scores of(std::uint32_t layer) const noexcept {
    return {static_cast<std::uint16_t>(layer), {values_, size_}, {values_, size_}};
  }
  /// Each row's best experts, as an engine with its own top-k passes them.
  FERRY_HD View<const Route> routes() noexcept {
    const std::uint32_t rows = size_ / experts;
    for (std::uint32_t row = 0; row < rows; ++row) {
      detail::best_of(values_ + row * experts, experts, top_k, routes_ + row * top_k);
      for (std::uint32_t i = row * top_k; i < (row + 1) * top_k; ++i) routes_[i].weight = 0.5F;
    }
    return {routes_, rows * top_k};
  }

 private:
  std::uint32_t size_;
  float values_[max_rows * experts];
  Route routes_[max_rows * top_k];
};

/// A step, with a row for each of some sequences or all rows of one prompt.
class Rowed {
 public:
  FERRY_HD explicit Rowed(Dice& dice) noexcept : phase(dice.phase()), rows(1 + dice.below(max_rows)) {
    for (std::uint32_t i = 0; i < rows; ++i) sequence_[i] = phase == Phase::decode ? i : 0;
  }
  FERRY_HD Step step() const noexcept { return {phase, {sequence_, rows}}; }

  const Phase phase;
  const std::uint32_t rows;

 private:
  std::uint32_t sequence_[max_rows] = {};
};

template <Predictor P, Phase phase>
inline constexpr bool reads_rows = part::rows_of<P>(phase) != RowSource::none;

/// How many rows of predicted scores the predictor reads.
template <Predictor P>
FERRY_HD std::uint32_t rows_read(const Rowed& rowed) noexcept {
  const bool reads = rowed.phase == Phase::prefill ? reads_rows<P, Phase::prefill> : reads_rows<P, Phase::decode>;
  return reads ? rowed.rows : 0;
}

/// One request for each of the first `count` experts of a layer.
FERRY_HD inline void draw(Dice& dice, Request* requests, std::uint32_t count) noexcept {
  for (std::uint16_t e = 0; e < count; ++e) {
    Request& r = requests[e] = {};
    r.want.id = {1, e};
    r.rows = 1 + dice.below(max_rows);
    r.unimportance = static_cast<float>(dice.below(17)) / 16.0F;
    r.state = static_cast<State>(dice.below(4));
    const std::uint32_t held = 1 + dice.below(precision_count - 1);
    if (r.state != State::absent) r.held = static_cast<Precision>(held);
    r.copy_ns = dice.below(1000);
    r.host_ns = dice.below(1000);
  }
}

// One step of the load, for each kind of policy and for a core. Draws are separate statements where the order of evaluation
// would otherwise be the compiler's choice.

/// Admits `what` to the pool, if the policy has a slot for it that is not barred.
template <CachePolicy C>
FERRY_HD std::uint32_t admit(C& cache, Load& load, Variant what, bool demand, Barred barred) noexcept {
  std::uint32_t slot = 0;
  while (slot < pool_slots && load.filled[slot]) ++slot;
  if (slot == pool_slots) {
    slot = cache.victim(what, barred);
    load.digest.add(slot);
    if (slot == no_slot) return slot;
  }
  cache.replace(slot, what, demand);
  load.holds[slot] = what;
  load.filled[slot] = true;
  return slot;
}

FERRY_HD inline std::uint32_t slot_of(const Load& load, Variant what) noexcept {
  for (std::uint32_t s = 0; s < pool_slots; ++s) {
    const Variant& v = load.holds[s];
    const bool same = v.id.layer == what.id.layer && v.id.expert == what.id.expert && v.precision == what.precision;
    if (load.filled[s] && same) return s;
  }
  return no_slot;
}

inline constexpr PoolShape pool_shape{pool_slots, 1, 3, experts};

template <CachePolicy C>
FERRY_HD void step(C& cache, Load& load) noexcept {
  Dice& dice = load.dice;
  if constexpr (part::Resets<C>) {
    if (dice.one_in(16)) cache.reset();
  }
  const Rowed rowed(dice);
  if constexpr (part::BeginsStep<C>) cache.begin_step(rowed.step());
  for (std::uint16_t l = 0; l < pool_shape.layers; ++l) {
    const auto layer = static_cast<std::uint16_t>(pool_shape.first_layer + l);
    const Rows gate(dice, rowed.rows);
    if constexpr (part::ObservesScores<C>) cache.observe(gate.of(layer));
    if constexpr (part::SeesChoices<C>) {
      Route chosen[max_rows];
      for (std::uint32_t r = 0; r < rowed.rows; ++r) chosen[r] = {dice.expert(), 1.0F, no_expert};
      cache.chosen(layer, {chosen, rowed.rows}, {});
    }
    std::uint8_t barred[pool_slots];  // 1: used by this layer, 2: by chance
    for (std::uint8_t& b : barred) b = dice.one_in(4) ? 2 : 0;
    Variant missing[experts];
    std::uint32_t misses = 0;
    for (std::uint16_t e = 0; e < experts; ++e) {
      if (!dice.one_in(4)) continue;
      const Variant what{{layer, e}, dice.one_in(3) ? Precision::int4 : Precision::full};
      if constexpr (part::SeesUse<C>) cache.used(what);
      const std::uint32_t slot = slot_of(load, what);
      if (slot == no_slot) {
        missing[misses++] = what;
      } else {
        cache.touch(what, slot);
        barred[slot] = 1;
      }
      if constexpr (part::CountsSavings<C>) {
        Request use;
        use.want = what;
        use.rows = dice.one_in(2) ? 1 : rowed.rows;
        cache.saved({&use, 1}, rowed.rows, Nanoseconds{e} * 1000);
      }
    }
    if constexpr (part::Wants<C>) {
      const ExpertId wanted = cache.wanted();
      const std::uint32_t there = load.filled[0] ? 0 : no_slot;
      if (wanted.expert != no_expert) load.digest.add(static_cast<std::uint64_t>(cache.more_saved(wanted, there)));
    }
    for (std::uint32_t i = 0; i < misses; ++i) {
      cache.touch(missing[i], no_slot);
      const std::uint32_t slot = admit(cache, load, missing[i], true, {barred, 1 | 2});
      if (slot != no_slot) barred[slot] = 1;
    }
    const auto next = static_cast<std::uint16_t>(pool_shape.first_layer + (l + 1) % pool_shape.layers);
    const Variant predicted{{next, dice.expert()}, Precision::full};
    if (slot_of(load, predicted) != no_slot) continue;
    const std::uint32_t slot = admit(cache, load, predicted, false, {barred, 1});
    const bool taken_back = dice.one_in(4);
    if constexpr (part::Forgets<C>) {
      if (slot == no_slot || !taken_back) continue;
      cache.forget(slot);
      load.filled[slot] = false;
    }
  }
}

template <ExpertRouter R>
FERRY_HD void step(R& router, Load& load) noexcept {
  const Rowed rowed(load.dice);
  const Rows gate(load.dice, rowed.rows);
  State present[experts];
  for (State& p : present) p = static_cast<State>(load.dice.below(4));
  Route routes[max_rows * top_k];
  Out<Route> out{routes, max_rows * top_k, 0};
  router.route(rowed.phase, gate.of(0), {present, experts}, out);
  load.digest.add(View<const Route>(out.view()));
}

template <QuantSelector Q>
FERRY_HD void step(Q& selector, Load& load) noexcept {
  Request requests[experts];
  const std::uint32_t count = load.dice.below(experts + 1);
  draw(load.dice, requests, count);
  const Phase phase = load.dice.phase();
  selector.select(phase, load.dice.one_in(2), {requests, count});
  load.digest.add(View<const Request>{requests, count});
  load.digest.add(selector.precisions());
}

template <Predictor P>
FERRY_HD void step(P& predictor, Load& load) noexcept {
  Dice& dice = load.dice;
  const Rowed rowed(dice);
  if constexpr (part::BeginsStep<P>) predictor.begin_step(rowed.step());
  for (std::uint16_t layer = 0; layer < layers; ++layer) {
    Rows gate(dice, rowed.rows);
    predictor.observe(layer, gate.routes(), {});
    for (std::uint32_t distance = 1; distance <= 2; ++distance) {
      const Rows predicted(dice, rows_read<P>(rowed));
      Request requests[experts];
      Out<Request> out{requests, experts, 0};
      predictor.predict(rowed.phase, predicted.of((layer + distance) % layers), out);
      load.digest.add(View<const Request>(out.view()));
    }
  }
  if constexpr (part::EndsSequence<P>) {
    if (dice.one_in(8)) predictor.end_sequence(0);
  }
}

template <Scheduler S>
FERRY_HD void step(S& scheduler, Load& load) noexcept {
  Dice& dice = load.dice;
  Request requests[experts];
  const std::uint32_t count = dice.below(experts + 1);
  draw(dice, requests, count);
  PrefetchWindow window;
  window.phase = dice.phase();
  window.layer_ns = dice.below(5000);
  window.taken = dice.below(3);
  window.taken_ns = dice.below(5000);
  load.digest.add(scheduler.further(window));
  if (scheduler.further(window)) load.digest.add(scheduler.take(window, {requests, count}));
  for (const bool demand : {false, true}) {
    scheduler.order(window.phase, demand, {requests, count});
    load.digest.add(View<const Request>{requests, count});
  }
  load.digest.add(scheduler.split(window.phase, {requests, count}));
}

FERRY_HD inline void carry_out(const Commands& commands, Load& load) noexcept {
  load.digest.add(commands);
  load.link.submit(commands.submit);
}

/// Preloads the first experts of every layer.
template <class S>
FERRY_HD void preload(Core<S>& core, Load& load) noexcept {
  for (std::uint16_t e = 0; e < top_k; ++e) {
    Variant wanted[layers];
    for (std::uint16_t layer = 0; layer < layers; ++layer) wanted[layer].id = {layer, e};
    load.digest.add(core.preload({wanted, layers}, load.link.seen(load.dice)));
    carry_out(core.commands(), load);
  }
}

template <class S>
FERRY_HD Plan plan(Core<S>& core, Load& load, std::uint16_t layer, Rows& gate) noexcept {
  const Seen seen = load.link.seen(load.dice);
  if constexpr (!part::needs_full_scores<typename S::router>() && !part::needs_full_scores<typename S::cache>()) {
    if (load.dice.one_in(4)) return core.plan(layer, gate.routes(), {}, seen);
  }
  return core.plan(gate.of(layer), seen);
}

template <class S>
FERRY_HD void step(Core<S>& core, Load& load) noexcept {
  Dice& dice = load.dice;
  if (load.steps == 0) preload(core, load);
  const Rowed rowed(dice);
  core.begin_step(rowed.step());
  const std::uint32_t failing = dice.one_in(8) ? dice.below(layers) : layers;
  for (std::uint16_t layer = 0; layer < layers; ++layer) {
    Rows gate(dice, rowed.rows);
    const Plan now = plan(core, load, layer, gate);
    load.digest.add(now);
    carry_out(core.commands(), load);
    const RowSource source = part::rows_of<typename S::predictor>(rowed.phase);
    for (std::uint16_t distance = 1;; ++distance) {
      const std::uint16_t ahead = core.layer_ahead(source, distance);
      if (ahead == no_layer) break;
      const Rows predicted(dice, rows_read<typename S::predictor>(rowed));
      core.look_ahead(predicted.of(ahead), load.link.seen(dice));
      carry_out(core.commands(), load);
      load.digest.add(core.prediction_accuracy(1, layer));
    }
    if (layer == failing) {
      core.abandon();
      carry_out(core.commands(), load);
      break;
    }
    core.done(now.resident);
    carry_out(core.commands(), load);
    for (const Task& t : now.arriving) {
      load.link.wait(t.ready);
      core.done({&t, 1});
      carry_out(core.commands(), load);
    }
    Times times;
    times.attention = dice.below(100);
    times.device = dice.below(100);
    times.host = dice.below(400);
    core.finish(layer, times, load.link.seen(dice));
    carry_out(core.commands(), load);
    load.digest.add(core.next_fence());
  }
  for (std::uint32_t sequence = 0; sequence < max_rows; ++sequence) {
    if (dice.one_in(2)) core.end_sequence(sequence);
  }
  load.digest.add(core.counters());
}

/// Runs `steps` more steps of the load.
template <class Subject>
FERRY_HD void drive(Subject& subject, Load& load, std::uint32_t steps) noexcept {
  static_assert(std::is_trivially_copyable_v<Subject>);
  for (std::uint32_t i = 0; i < steps; ++i) {
    step(subject, load);
    ++load.steps;
  }
}

// Set-up, on the host: a subject's block from its parameters.

inline constexpr std::size_t head_bytes(std::size_t bytes) {
  return (bytes + storage_alignment - 1) / storage_alignment * storage_alignment;
}

/// Does nothing for policies without state: all schedulers, and some selectors.
template <class P>
void reserve(P& policy, Carver& carve) {
  if constexpr (part::ReservesForPool<P>) {
    policy.reserve(carve, pool_shape);
  } else if constexpr (part::ReservesForModel<P>) {
    policy.reserve(carve, Shape{layers, experts, top_k, max_rows, Renormalise::yes});
  }
}

/// Memory for a block that starts `offset` bytes behind a multiple of 128.
class Block {
 public:
  Block(std::size_t bytes, std::size_t offset)
      : memory_(static_cast<std::byte*>(::operator new(bytes + offset, alignment))), offset_(offset) {}
  [[nodiscard]] std::byte* data() const { return memory_.get() + offset_; }

 private:
  static constexpr std::align_val_t alignment{2 * storage_alignment};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, alignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t offset_;
};

template <class P>
std::size_t block_bytes(P policy) {
  Carver carve;
  reserve(policy, carve);
  return head_bytes(sizeof(P)) + carve.bytes();
}
template <class S>
std::size_t block_bytes(const CoreConfig<S>& config) {
  return Core<S>::storage_bytes(config);
}

/// Creates a policy in a block that is aligned to `storage_alignment`.
template <class P>
P* create(std::byte* block, const P& parameters) {
  P* policy = new (block) P(parameters);
  Carver carve(block + head_bytes(sizeof(P)));
  reserve(*policy, carve);
  return policy;
}
template <class S>
Core<S>* create(std::byte* block, const CoreConfig<S>& config) {
  return Core<S>::create(block, config);
}

/// The type that `create` makes from these parameters.
template <class Parameters>
using Subject = std::remove_pointer_t<decltype(create(nullptr, std::declval<const Parameters&>()))>;

/// The budget holds a sixth of the experts at full precision.
template <class S>
CoreConfig<S> config_of() {
  CoreConfig<S> c;
  c.model.layers = layers;
  c.model.experts = experts;
  c.model.top_k = top_k;
  c.model.max_rows = max_rows;
  c.model.renormalise = Renormalise::yes;
  c.model.expert_bytes = {ExpertBytes{0, 64, 128, 256, 512}};
  if constexpr (requires { c.predictor.percentile; }) c.predictor.percentile = 50;  // not just the top k
  S::set_up(c, c.model.all_bytes() / 6);                                            // INT4 does not fit either
  if constexpr (requires { c.router.alpha; }) c.router.alpha = 0.25F;
  if constexpr (requires { c.predictor.alpha; }) c.predictor.alpha = 0.25F;
  if constexpr (requires { c.precision.t1; }) {
    c.precision.t1 = 0.5F;  // of two experts, the second one's unimportance is 1/2 at least
    c.precision.t2 = 0.6F;
  }
  c.top_score_alpha = 0.25F;
  c.transient_prefill_rows = 3;
  for (std::uint32_t p = 0; p < precision_count; ++p) c.copy_ns[p] = 50 * p;
  return c;
}

template <class Visit>
void for_each_policy(const Visit& visit) {
  Dice dice;
  std::vector<ExpertId> future;  // predictions need not come true: only equal answers count
  std::vector<std::uint32_t> starts{0};
  for (std::uint32_t i = 0; i < load_steps * layers; ++i) {
    const std::uint16_t first = dice.expert();
    for (std::uint16_t e = 0; e < top_k; ++e) {
      future.push_back({static_cast<std::uint16_t>(i % layers), static_cast<std::uint16_t>((first + e) % experts)});
    }
    starts.push_back(static_cast<std::uint32_t>(future.size()));
  }
  const View<const ExpertId> all{future.data(), static_cast<std::uint32_t>(future.size())};
  Belady belady;
  belady.future = all;
  Oracle oracle;
  oracle.asked = all;
  oracle.starts = {starts.data(), static_cast<std::uint32_t>(starts.size())};
  ExpertCacheRouter substituting;
  substituting.alpha = 0.25F;
  ExpertSkipping skipping;
  skipping.max_loss = 3.0F;
  CrossLayerGate median;
  median.percentile = 50;
  PartialHidden partial;
  partial.alpha = 0.25F;

  visit("Arc", Arc{});
  visit("Belady", belady);
  visit("FifoCache", FifoCache{});
  visit("Fld", Fld{});
  visit("ExpectedSavings", ExpectedSavings{});
  visit("Lfu", Lfu{});
  visit("Lhu", Lhu{});
  visit("LoadOnDemand", LoadOnDemand{});
  visit("Lru", Lru{});
  visit("Multidimensional", Multidimensional{});
  visit("RandomVictim", RandomVictim{});
  visit("ScoreAverage", ScoreAverage{});
  visit("ScoreWindow", ScoreWindow{});
  visit("Sieve", Sieve{});
  visit("StaticResidency", StaticResidency{});

  visit("TopK", TopK{});
  visit("ExpertCacheRouter", substituting);
  visit("ExpertSkipping", skipping);

  visit("FixedPrecision", FixedPrecision{});
  visit("ImportanceThresholds", ImportanceThresholds{});
  visit("PopularityHybrid", PopularityHybrid{});

  visit("NoPrediction", NoPrediction{});
  visit("ActivationMatrix", ActivationMatrix{});
  visit("ActivationPath", ActivationPath{});
  visit("CrossLayerGate", median);
  visit("EveryExpert", EveryExpert{});
  visit("Oracle", oracle);
  visit("PartialHidden", partial);
  visit("StackedGates", StackedGates{});

  visit("TransferBudget, PopularityOrder, DeviceOnly", Schedule<TransferBudget, PopularityOrder, DeviceOnly>{});
  visit("FirstMiss, ArrivalOrder, HostInDecode", Schedule<FirstMiss, ArrivalOrder, HostInDecode>{});
  visit("NoLimit, BatchSizeOrder, TwoPointer", Schedule<NoLimit, BatchSizeOrder, TwoPointer>{});
  visit("NoLimit, BatchSizeOrder, BestSplit", Schedule<NoLimit, BatchSizeOrder, BestSplit>{});
  visit("NoLimit, BatchSizeOrder, EarliestFinish", Schedule<NoLimit, BatchSizeOrder, EarliestFinish>{});
  visit("NoLimit, BatchSizeOrder, ChosenPlacement",
        Schedule<NoLimit, BatchSizeOrder, ChosenPlacement<PlacementRule::two_pointer>>{});
}

template <class Visit>
void for_each_core(const Visit& visit) {
  visit("OnDemand", config_of<stacks::OnDemand>());
  visit("LayerStream", config_of<stacks::LayerStream>());
  visit("LruCache", config_of<stacks::LruCache>());
  visit("LlamaCache", config_of<stacks::LlamaCache>());
  visit("LruInt4", config_of<stacks::LruInt4>());
  visit("CrossLayerLru", config_of<stacks::CrossLayerLru>());
  visit("MixtralOffloading", config_of<stacks::MixtralOffloading>());
  visit("MoeInfinity", config_of<stacks::MoeInfinity>());
  visit("ActivationPathStack", config_of<stacks::ActivationPathStack>());
  visit("ActivationPathFull", config_of<stacks::ActivationPathFull>());
  visit("StaticHost", config_of<stacks::StaticHost>());
  visit("StaticHostInt4", config_of<stacks::StaticHostInt4>());
  visit("HybriMoe", config_of<stacks::HybriMoe>());
  visit("Ferry", config_of<stacks::Ferry>());
  visit("FerryInt4", config_of<stacks::FerryInt4>());
  visit("FerryLossy", config_of<stacks::FerryLossy>());
  visit("FerryDevice", config_of<stacks::FerryDevice>());
  visit("FatePrefetch", config_of<stacks::FatePrefetch>());
  visit("FateCache", config_of<stacks::FateCache>());
  visit("Fate", config_of<stacks::Fate>());
  visit("HobbitDynamic", config_of<stacks::HobbitDynamic>());
  visit("HobbitPrefetch", config_of<stacks::HobbitPrefetch>());
  visit("Hobbit", config_of<stacks::Hobbit>());
  visit("HobbitCooperative", config_of<stacks::HobbitCooperative>());
  visit("ImportanceEviction", config_of<stacks::ImportanceEviction>());
  visit("ImportanceRouter", config_of<stacks::ImportanceRouter>());
  visit("ImportancePrefetch", config_of<stacks::ImportancePrefetch>());
  visit("ImportanceDriven", config_of<stacks::ImportanceDriven>());
  visit("ImportanceBalanced", config_of<stacks::ImportanceBalanced>());
}

}  // namespace ferry::test::device
