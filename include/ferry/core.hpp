/// @file
/// The decision core: gate scores in, plan and copy commands out. The only control flow of the library.
#pragma once
#include <cassert>

#include "ferry/core_config.hpp"
#include "ferry/detail/expert_groups.hpp"
#include "ferry/detail/found_experts.hpp"
#include "ferry/detail/layer_counts.hpp"
#include "ferry/detail/layer_routes.hpp"
#include "ferry/detail/layer_tasks.hpp"
#include "ferry/detail/live_sequences.hpp"

namespace ferry::inline FERRY_ABI {

/// Decides; carries nothing out. A function of its state and of the arguments of its calls, which it does not check:
/// OffloadPipeline does.
///
/// Calls of one step: `begin_step`, then for each layer in order `plan`, any number of `look_ahead`, `done`
/// for groups of tasks, `finish`. After each call that takes `Seen`, and after `done` and `abandon`, `commands()` must be
/// carried out before the next call. `abandon` ends the step after an error, at any point.
///
/// The object is the head of one block of `storage_bytes()` bytes without pointers: build it with `create`,
/// and copy the block as a whole or not at all. No call allocates, throws, or reads a clock. Complexity of
/// `plan`: O(rows * E) for the router, O(E + rows * k) beside it, and the policies' own.
template <class Stack>
class Core {
  using Predictor = typename Stack::predictor;
  using Cache = typename Stack::cache;
  using Precisions = typename Stack::precision;
  using Scheduler = typename Stack::scheduler;
  using Router = typename Stack::router;

 public:
  using Config = CoreConfig<Stack>;  ///< what it is built from

  /// Bytes of the block for this configuration. Throws ConfigError if the configuration cannot work.
  static std::size_t storage_bytes(const Config& config) {
    config.validate();
    Core measure(config);
    Carver carve;
    measure.reserve(carve, config);
    return sizeof(Core) + storage_alignment + carve.bytes();
  }

  /// Builds a core at the start of `block`, which is aligned to `storage_alignment`.
  static Core* create(std::byte* block, const Config& config) {
    assert(reinterpret_cast<std::uintptr_t>(block) % storage_alignment == 0);
    const std::size_t head = (sizeof(Core) + storage_alignment - 1) / storage_alignment * storage_alignment;
    Carver carve(block + head, storage_bytes(config) - head);
    Core* core = new (block) Core(config);
    core->reserve(carve, config);
    return core;
  }

  /// Starts one forward pass. `step.sequence` has one entry a row.
  FERRY_HD void begin_step(const Step& step) noexcept {
    phase_ = step.phase;
    rows_ = step.sequence.size;
    assert(rows_ > 0 && rows_ <= shape_.max_rows);
    assert(tasks_.empty());  // the last layer was neither finished nor abandoned
    slots_.accounts().begin_step(phase_, rows_);
    if (live_.note(step.sequence)) slots_.reset();
    if constexpr (part::BeginsStep<Predictor>) predictor_.begin_step(step);
    slots_.begin_step(step, phase_ == Phase::prefill && rows_ > transient_prefill_rows_);
  }

  /// Plans a layer by the real gate's scores [rows, E], of the rows that they name: who runs, where, at which precision.
  FERRY_HD Plan plan(const Scores& scores, const Seen& seen) noexcept {
    slots_.begin_call(seen);
    costs_.see(seen);
    slots_.observe(scores);
    if constexpr (part::needs_residency<Router>()) slots_.states(scores.layer, present_);
    Out<Route> out = routes_.room();
    const Scores of_layer = counts_.of(scores);
    router_.route(phase_, of_layer, {present_.data(), present_.size()}, out);
    assert(out.size * shape_.experts == scores.select.size * shape_.top_k);
    slots_.accounts().see(of_layer);
    return decide(scores.layer, out.view(), scores.rows);
  }

  /// The same for an engine with a top-k of its own: [rows, k] routes, best first, of the rows of the step that `rows`
  /// names (empty: all of them).
  FERRY_HD Plan plan(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows,
                     const Seen& seen) noexcept {
    static_assert(!part::needs_full_scores<Router>(),
                  "this router needs the scores of all experts: call plan(scores) instead of plan(layer, routes)");
    static_assert(
        !part::needs_full_scores<Cache>(),
        "this cache policy needs the scores of all experts: call plan(scores) instead of plan(layer, routes)");
    slots_.begin_call(seen);
    costs_.see(seen);
    const View<Route> own = routes_.copy(routes);
    if constexpr (part::Revises<Router>) router_.revise(phase_, own);
    slots_.accounts().see_no_scores();
    return decide(layer, own, rows);
  }

  /// The layer `distance` (from 1) ahead of the one planned last, if a look-ahead for it is of use now and this stack's
  /// predictor reads rows of `source` in this phase; `no_layer` otherwise. Behind the last layer lie the layers of the
  /// next step, for which no rows exist yet: only a predictor that reads no rows in decode either can predict them.
  FERRY_HD std::uint16_t layer_ahead(RowSource source, std::uint16_t distance) const noexcept {
    if constexpr (!part::predicts<Predictor>()) return no_layer;
    if (distance > depth_ || part::rows_of<Predictor>(phase_) != source) return no_layer;
    std::uint32_t layer = std::uint32_t{layer_} + distance;
    if (layer >= shape_.layers) {
      if (source != RowSource::none || part::rows_of<Predictor>(Phase::decode) != RowSource::none) return no_layer;
      layer %= shape_.layers;
    }
    const auto ahead = static_cast<std::uint16_t>(layer);
    return scheduler_.further(window(ahead)) ? ahead : no_layer;
  }

  /// Predicted scores [rows, E] of a later layer: prefetches, behind the demand already known. The layer may
  /// be one of the next step (layer 0 at the end of this one). Both arrays of `predicted` may be empty for a predictor
  /// that reads no rows in this phase; a predictor that reads rows is not called without them.
  FERRY_HD void look_ahead(const Scores& predicted, const Seen& seen) noexcept {
    slots_.begin_call(seen);
    settle();
    if constexpr (part::predicts<Predictor>()) {
      assert(predicted.layer < shape_.layers && predicted.select.size <= shape_.max_rows * shape_.experts);
      if (predicted.select.size == 0 && part::rows_of<Predictor>(phase_) != RowSource::none) return;
      const PrefetchWindow span = window(predicted.layer);
      Out<Request> out{requests_.data(), requests_.size(), 0};
      predictor_.predict(phase_, counts_.of(predicted), out);
      const View<Request> requests = out.view();
      slots_.accounts().predicted(counts_.of(predicted), span.distance, requests);
      if (!scheduler_.further(span)) return;
      choose_precision(false, requests);
      std::uint32_t absent = 0;  // those come to the front, in order
      for (std::uint32_t i = 0; i < requests.size; ++i) {
        if (requests[i].want.id.expert >= counts_.experts(predicted.layer)) continue;  // of other layers alone
        slots_.find_wanted(requests[i]);
        if (requests[i].slot != no_slot) {
          slots_.mask(requests[i].slot, predicted.layer);
        } else if (requests[i].want.precision != Precision::skip) {
          if (absent != i) requests[absent] = requests[i];
          measured_.set(phase_, requests[absent++]);  // behind the copy, which would wait for it
        }
      }
      View<Request> wanted = requests.part(0, absent);
      wanted.size = least(absent, scheduler_.take(span, wanted));
      taken_ += wanted.size;
      scheduler_.order(phase_, false, wanted);
      prefetch(wanted);
    }
  }

  /// The fence that the next `done`, `finish` or `abandon` will use: record it on the device before that call.
  FERRY_HD Fence next_fence() const noexcept { return Fence{fence_ + 1}; }

  /// These tasks of the plan have had their last reader once `next_fence()` is reached: the copies that
  /// waited for their slots may follow. Tasks of `Plan::arriving` in the plan's order, each once: a copy that
  /// waited for a task which was passed over is never submitted, and Link::wait refuses it.
  FERRY_HD void done(View<const Task> tasks) noexcept {
    slots_.begin_call();
    tasks_.done(tasks, Fence{++fence_}, slots_);
  }

  /// The layer is over: leases that `done` has not ended yet end now, and measured costs are noted. A cost of 0 was
  /// not measured, and leaves the last one as it is.
  FERRY_HD void finish(std::uint16_t layer, const Times& times, const Seen& seen) noexcept {
    slots_.begin_call(seen);
    settle();
    if constexpr (part::predicts<Predictor>()) {
      slots_.accounts().finish(layer_ahead(part::rows_of<Predictor>(phase_), 1) != no_layer);
    }
    measured_.note(phase_, layer, times, tasks_.host(), costs_);
    tasks_.end(Fence{++fence_}, slots_);
    slots_.finished(layer);
    if (phase_ == Phase::prefill) tasks_.staging().finish(times);
  }

  /// Ends the step after an error: leases end, copies on their way still land.
  FERRY_HD void abandon() noexcept {
    slots_.begin_call();
    settle();
    tasks_.staging().clear();
    tasks_.end(Fence{++fence_}, slots_);
    slots_.accounts().abandon();
  }
  /// A step was left in the middle of a layer: counts it, ahead of its `abandon`.
  FERRY_HD void count_unfinished() noexcept { slots_.accounts().leave_unfinished(); }

  /// A sequence is over: policies forget what they kept for it.
  FERRY_HD void end_sequence(std::uint32_t sequence) noexcept {
    settle();
    if (!live_.end(sequence)) return;
    if constexpr (part::EndsSequence<Predictor>) predictor_.end_sequence(sequence);
  }

  /// Fills free slots before the first step, best first, by demand copies, behind which the first plan's copies queue.
  /// Returns how many of `wanted` it has dealt with: call it again with the rest until none is left.
  FERRY_HD std::uint32_t preload(View<const Variant> wanted, const Seen& seen) noexcept {
    slots_.begin_call(seen);
    std::uint32_t i = 0;
    for (; i < wanted.size && slots_.submits() < shape_.experts; ++i) slots_.preload(wanted[i]);
    return i;
  }

  FERRY_HD Commands commands() const noexcept { return slots_.commands(); }  ///< what the last call wants done
  FERRY_HD const Counters& counters() const noexcept { return slots_.accounts().counters(); }  ///< since it was built
  FERRY_HD const Residency& residency() const noexcept { return slots_.residency(); }          ///< what is where
  FERRY_HD const Shape& shape() const noexcept { return shape_; }               ///< the sizes that it works with
  FERRY_HD const Precisions& precision() const noexcept { return precision_; }  ///< the selector, with its state
  FERRY_HD const Predictor& predictor() const noexcept { return predictor_; }   ///< likewise
  /// The policy of a pool, with its state: for reports and tests.
  FERRY_HD const Cache& cache(std::uint16_t pool) const noexcept { return slots_.cache(pool); }
  /// Layers ahead that this stack's predictor wants to be asked for; 0: none.
  FERRY_HD std::uint16_t look_ahead_depth() const noexcept { return depth_; }
  /// Of the predictions made for `layer` from `distance` (1 to the depth) layers before it, counted behind its plan.
  FERRY_HD Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept {
    return slots_.accounts().accuracy(distance, layer);
  }

 private:
  explicit Core(const Config& c)
      : predictor_(c.predictor),
        precision_(c.precision),
        scheduler_(c.scheduler),
        router_(c.router),
        shape_(c.model),
        measured_(c),
        transient_prefill_rows_(c.transient_prefill_rows),
        costs_(c.costs),
        depth_(part::depth_of(c.predictor)) {
    part::check_hooks<Stack>();
  }

  void reserve(Carver& carve, const Config& c) {
    slots_.reserve(carve, c.model, c.allotment, c.cache, depth_, c.top_score_alpha);
    predictor_.reserve(carve, shape_);
    router_.reserve(carve, shape_);
    if constexpr (part::ReservesForModel<Precisions>) precision_.reserve(carve, shape_);
    live_.reserve(carve, shape_);
    measured_.reserve(carve, shape_.layers);
    routes_.reserve(carve, shape_);
    carve(requests_, shape_.experts);
    found_.reserve(carve, shape_.experts);
    tasks_.reserve(carve, shape_.experts, c.allotment.stream_slots);
    groups_.reserve(carve, shape_);
    carve(present_, part::needs_residency<Router>() ? shape_.experts : 0);
    counts_.reserve(carve, c.model);
  }

  FERRY_HD static std::uint32_t least(std::uint32_t a, std::uint32_t b) noexcept { return a < b ? a : b; }

  /// What look-aheads for `layer` may spend, by the layer planned last.
  FERRY_HD PrefetchWindow window(std::uint16_t layer) const noexcept {
    const auto distance = static_cast<std::uint16_t>(layer > layer_ ? layer - layer_ : layer + shape_.layers - layer_);
    const std::uint32_t on_device = tasks_.on_device() > 0 ? tasks_.on_device() : shape_.top_k;
    return {phase_, distance, measured_.layer_ns(phase_, layer_, on_device), taken_, taken_ns_};
  }

  /// Sets precisions; slot, state and precision held are of the best variant there is.
  FERRY_HD void choose_precision(bool demand, View<Request> requests) noexcept {
    for (Request& r : requests) slots_.find_best(r);
    precision_.select(phase_, demand, requests);
    if constexpr (part::substitutes<Router>()) {  // chosen because it is there: a substitute runs as it is there
      for (Request& r : requests) {
        if (demand && !slots_.accounts().asked(r.want.id.expert) && r.held < r.want.precision &&
            r.held != Precision::skip) {
          r.want.precision = r.held;
        }
      }
    }
  }

  /// One layer: from its routes to who runs where.
  FERRY_HD Plan decide(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows) noexcept {
    assert(layer < shape_.layers && tasks_.empty());
    layer_ = layer;
    taken_ = 0;
    taken_ns_ = 0;
    Out<Request> gathered{requests_.data(), requests_.size(), 0};
    groups_.template gather<part::needs_unimportance<Precisions>()>(layer, routes, gathered);
    const View<Request> requests = gathered.view();
    routes_.keep(routes.size, rows);
    slots_.chosen(layer, routes, rows);
    slots_.accounts().ask(routes, requests);
    choose_precision(true, requests);
    slots_.unmask(layer);

    found_.find(phase_, requests, measured_, slots_, [this](const Request& r) {
      slots_.accounts().skip(r);
      for (std::uint32_t i = 0; i < r.rows; ++i) routes_.leave_out(groups_.assignments()[r.first + i]);
    });
    const View<Request> present = requests.part(0, found_.present()), misses = found_.misses();
    if (part::predicts<Predictor>() && phase_ == Phase::prefill) {
      tasks_.staging().plan(misses.size, counts_.experts(layer) - residency().held(layer));
    }
    const Split split = place(present);
    found_.count_savings(phase_, requests, rows.size > 0 ? rows.size : rows_, scheduler_, measured_, costs_, slots_);
    slots_.loaded(layer, split.loads, misses.size);
    slots_.drop_stale(layer);
    const std::uint32_t on_device = present.size - split.hosted;
    tasks_.add_resident(present.part(0, on_device), slots_);
    if (found_.any_staged()) tasks_.add_staged(requests, slots_);
    if (split.waits) tasks_.add_in_flight(found_.arriving(), slots_);
    tasks_.load(misses.part(0, split.loads), slots_);
    tasks_.add_hosted(present.part(on_device, split.hosted), slots_);
    if (!split.waits) tasks_.add_on_host(found_.arriving(), slots_);
    tasks_.add_on_host(misses.part(split.loads, misses.size - split.loads), slots_);
    promote();
    return {routes, groups_.assignments(), tasks_.resident(), tasks_.arriving(), tasks_.host()};
  }

  /// Tells predictor and accounts, for which no plan waits, what the layer planned last chose, before anything asks them.
  FERRY_HD void settle() noexcept {
    routes_.tell([this](View<const Route> routes, View<const std::uint32_t> rows) {
      predictor_.observe(layer_, routes, rows);
      slots_.accounts().score(layer_, routes, rows);
    });
  }

  /// Orders the misses and decides who computes what. An expert on its way that the host computes is not leased.
  FERRY_HD Split place(View<Request> present) noexcept {
    const View<Request> misses = found_.misses(), arriving = found_.arriving();
    scheduler_.order(phase_, true, misses);
    Split split;
    if constexpr (part::WeighsLayers<Scheduler>) {
      scheduler_.order(phase_, true, present);
      split = scheduler_.split(phase_, present, slots_.share_gain(misses), arriving, costs_);
      split.hosted = least(present.size, split.hosted);
      for (const Request& r : arriving) split.waits ? slots_.use(r.slot) : slots_.cancel_lease(r.slot);
    } else {
      split.loads = scheduler_.split(phase_, misses);
    }
    split.loads = least(misses.size, split.loads);
    for (const Request& r : misses.part(split.loads, misses.size - split.loads)) {
      if (r.state == State::queued) slots_.cancel_lease(r.slot);
    }
    return split;
  }

  /// The link brings what the cache wants most while it has nothing else to do.
  FERRY_HD void promote() noexcept {
    if constexpr (part::Promotes<Scheduler> && part::Wants<Cache>) {
      if (phase_ != Phase::decode || residency().prefetches() > 0) return;
      std::uint16_t closed = Residency::no_pool;
      for (std::uint16_t pool = 0; pool < slots_.pools(); ++pool) {
        Request r{.want = {.id = slots_.wanted(pool)}};
        if (r.want.id.expert == no_expert) continue;
        choose_precision(false, {&r, 1});
        if (residency().find(r.want) != no_slot) continue;  // in another pool, or in a stream slot
        measured_.set(phase_, r);
        const std::uint32_t slot =
            slots_.make_room(r.want, Residency::for_prefetch, closed, [&](const Cache& cache, std::uint32_t victim) {
              return scheduler_.promotes(r, cache.more_saved(r.want.id, victim), costs_);
            });
        if (slot == no_slot) continue;
        slots_.admit(slot, r.want, false, tasks_.waits());
        slots_.accounts().promoted();
        return;
      }
    }
  }

  FERRY_HD void prefetch(View<const Request> wanted) noexcept {
    std::uint16_t spared = Residency::no_pool;
    for (const Request& r : wanted) {
      if (residency().find(r.want) != no_slot) continue;  // named twice
      const std::uint32_t slot = slots_.make_room(r.want, Residency::for_prefetch, spared);
      if (slot != no_slot) {
        slots_.admit(slot, r.want, false, tasks_.waits());
        slots_.mask(slot, r.want.id.layer);
      } else if (phase_ == Phase::prefill && r.want.id.layer == layer_ + 1 && tasks_.staging().is_worth(r.copy_ns)) {
        tasks_.staging().push(r.want);
      } else {
        continue;
      }
      taken_ns_ = detail::sum(taken_ns_, r.copy_ns);
    }
    tasks_.submit_waiting(slots_);
  }

  detail::CachedSlots<Stack> slots_;
  Predictor predictor_;
  Precisions precision_;
  Scheduler scheduler_;
  Router router_;
  Shape shape_;
  detail::MeasuredCosts measured_;
  Array<Request> requests_;  ///< [experts]
  Array<State> present_;     ///< [experts], for routers that need it
  detail::LayerRoutes routes_;
  detail::LayerCounts counts_;
  detail::FoundExperts<Stack> found_;
  detail::LayerTasks<Stack> tasks_;
  detail::LiveSequences live_;
  detail::ExpertGroups groups_;
  std::uint64_t fence_ = 0;
  std::uint32_t rows_ = 0, transient_prefill_rows_ = 0, taken_ = 0;  ///< taken_: by look-aheads since the plan
  Nanoseconds taken_ns_ = 0;
  LayerCosts costs_;  ///< of the link when the layer was planned, and of the host as given or learned
  std::uint16_t layer_ = 0, depth_ = 0;
  Phase phase_ = Phase::decode;
};

}  // namespace ferry::inline FERRY_ABI
