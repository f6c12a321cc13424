/// @file
/// The decision core: gate scores in, plan and copy commands out. The only control flow of the library.
#pragma once
#include <cassert>

#include "ferry/core_config.hpp"
#include "ferry/detail/command_list.hpp"
#include "ferry/detail/expert_groups.hpp"
#include "ferry/detail/live_sequences.hpp"
#include "ferry/detail/prediction_record.hpp"
#include "ferry/detail/top_scores.hpp"
#include "ferry/residency.hpp"

namespace ferry::inline FERRY_ABI {

/// Decides; carries nothing out. A function of its state and of the arguments of its calls.
///
/// Calls of one step: `begin_step`, then for each layer in order `plan`, any number of `look_ahead`, `done`
/// for groups of tasks, `finish`. After each call that takes `Seen`, and after `done`, `commands()` must be
/// carried out before the next call. `abandon` at any point ends the step after an error.
///
/// The object is the head of one block of `storage_bytes()` bytes without pointers: build it with `create`,
/// and copy the block as a whole or not at all. No call allocates, throws, or reads a clock. Complexity of
/// `plan`: O(rows * E) for the router, O(E + rows * k) beside it, and the policies' own.
template <class Stack>
class Core {
  using Predictor = typename Stack::predictor;
  using Cache = typename Stack::cache;
  using Precisions = typename Stack::precision;
  using Router = typename Stack::router;

 public:
  using Config = CoreConfig<Stack>;

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
    config.validate();
    Core* core = new (block) Core(config);
    Carver carve(block + (sizeof(Core) + storage_alignment - 1) / storage_alignment * storage_alignment);
    core->reserve(carve, config);
    return core;
  }

  /// Starts one forward pass. `step.sequence` has one entry a row.
  FERRY_HD void begin_step(const Step& step) noexcept {
    phase_ = step.phase;
    rows_ = step.sequence.size;
    assert(rows_ > 0 && rows_ <= shape_.max_rows);
    assert(task_count_ == 0);  // the last layer was neither finished nor abandoned
    ++counters_.steps[static_cast<unsigned>(phase_)];
    live_.note(step.sequence);
    if constexpr (part::BeginsStep<Predictor>) predictor_.begin_step(step);
    if constexpr (part::BeginsStep<Cache>) {
      for (Cache& c : caches_) c.begin_step(step);
    }
    commands_.clear();
  }

  /// The real gate has spoken: who runs, where, at which precision. [rows, E] scores.
  FERRY_HD Plan plan(const Scores& scores, const Seen& seen) noexcept {
    begin_call(seen);
    assert(scores.select.size == rows_ * shape_.experts);
    if constexpr (part::ObservesScores<Cache>) {
      residency_.for_each_pool(scores.layer, [&](std::uint16_t pool) { caches_[pool].observe(scores); });
    }
    if constexpr (part::needs_residency<Router>()) {
      for (State& s : present_) s = State::absent;
      residency_.for_each_held(scores.layer, [&](ExpertId id) {
        present_[id.expert] = residency_.state({id, Precision::skip});
      });
    }
    Out<Route> out{routes_.data(), routes_.size(), 0};
    router_.route(phase_, scores, {present_.data(), present_.size()}, out);
    if constexpr (part::substitutes<Router>()) {
      for (std::uint32_t row = 0; row < rows_; ++row) {
        Route best;
        detail::best_of(scores.select.data + std::size_t{row} * shape_.experts, shape_.experts, 1, &best);
        best_[row] = best.expert;
      }
    }
    assert(out.size == rows_ * shape_.top_k);
    top_scores_.mark(scores.select);
    return decide(scores.layer, top_scores_.on());
  }

  /// The same for an engine with a top-k of its own: [rows, k] routes, best first.
  FERRY_HD Plan plan(std::uint16_t layer, View<const Route> routes, const Seen& seen) noexcept {
    static_assert(!part::needs_full_scores<Router>(),
                  "this router needs the scores of all experts: call plan(scores) instead of plan(layer, routes)");
    static_assert(
        !part::needs_full_scores<Cache>(),
        "this cache policy needs the scores of all experts: call plan(scores) instead of plan(layer, routes)");
    begin_call(seen);
    assert(routes.size == rows_ * shape_.top_k);
    for (std::uint32_t i = 0; i < routes.size; ++i) routes_[i] = routes[i];
    return decide(layer, false);
  }

  /// True if a prediction for `layer` is of use now: an engine may leave out what makes its rows otherwise.
  FERRY_HD bool wants_look_ahead(std::uint16_t layer) const noexcept {
    if constexpr (part::predicts<Predictor>()) {
      return layer < shape_.layers && scheduler_.further(window(layer));
    }
    return false;
  }

  /// Predicted scores [rows, E] of a later layer: prefetches, behind the demand already known. The layer may
  /// be one of the next step (layer 0 at the end of this one). Ignored if there is no such layer, or too many rows.
  /// For a predictor that reads no rows in this phase, both arrays of `predicted` may be empty.
  FERRY_HD void look_ahead(const Scores& predicted, const Seen& seen) noexcept {
    begin_call(seen);
    if constexpr (part::predicts<Predictor>()) {
      if (predicted.layer >= shape_.layers || predicted.select.size > shape_.max_rows * shape_.experts) return;
      if (predicted.select.size == 0 && part::rows_of<Predictor>(phase_) != RowSource::none) return;
      const PrefetchWindow span = window(predicted.layer);
      Out<Request> out{requests_.data(), requests_.size(), 0};
      predictor_.predict(phase_, predicted, out);
      const View<Request> requests = out.view();
      predicted_.note(predicted, span.distance, requests);
      if (!scheduler_.further(span)) return;
      choose_precision(false, requests);
      std::uint32_t absent = 0;  // those come to the front, in order
      for (std::uint32_t i = 0; i < requests.size; ++i) {
        const std::uint32_t slot = find(requests[i], i);
        if (slot != no_slot) {
          residency_.mask(slot, predicted.layer);
        } else if (requests[i].want.precision != Precision::skip) {
          if (absent != i) requests[absent] = requests[i];
          set_costs(requests[absent++]);  // behind the copy, which would wait for it
        }
      }
      View<Request> wanted = requests.part(0, absent);
      wanted.size = least(absent, scheduler_.take(span, wanted));
      taken_ += wanted.size;
      scheduler_.order(phase_, false, wanted);
      std::uint16_t spared = Residency::no_pool;
      for (const Request& r : wanted) {
        if (residency_.find(r.want) != no_slot) continue;  // named twice
        const std::uint32_t slot = make_room(r.want, Residency::for_prefetch, spared);
        if (slot == no_slot) continue;
        taken_ns_ += r.copy_ns;
        admit(slot, r.want, false);
        residency_.mask(slot, predicted.layer);
      }
    }
  }

  /// The fence that the next `done`, `finish` or `abandon` will use: record it on the device before that call.
  FERRY_HD Fence next_fence() const noexcept { return Fence{fence_ + 1}; }

  /// These tasks of the plan have had their last reader once `next_fence()` is reached: the copies that
  /// waited for their slots may follow. Tasks of `arriving` in the plan's order, each once: a copy that
  /// waited for a task which was passed over is never submitted, and Link::wait refuses it.
  FERRY_HD void done(View<const Task> tasks) noexcept {
    commands_.clear();
    const Fence fence{++fence_};
    for (const Task& t : tasks) {
      if (t.slot == no_slot || !residency_.is_leased(t.slot)) continue;
      if (t.transient && residency_.slot(t.slot).ticket != t.ready) continue;  // done before: another's slot now
      residency_.end_lease(t.slot, fence);
      if (!t.transient || next_deferred_ >= arriving_end_ || tasks_[next_deferred_].slot != t.slot) continue;
      stream(tasks_[next_deferred_++]);
    }
    if (next_deferred_ >= arriving_end_) commands_.submit_held();
  }

  /// The layer is over: leases that `done` has not ended yet end now, and the costs that were measured are
  /// noted (those that are 0 were not, and leave the last ones).
  FERRY_HD void finish(std::uint16_t layer, const Times& times, const Seen& seen) noexcept {
    begin_call(seen);
    end_leases();
    Times& last = measured(layer);
    if (times.attention != 0) last.attention = times.attention;
    if (times.gate != 0) last.gate = times.gate;
    if (times.device != 0) last.device = times.device;
    if (times.host != 0) last.host = times.host;
  }

  /// Ends the step after an error: leases end, copies on their way still land.
  FERRY_HD void abandon() noexcept {
    commands_.clear();
    end_leases();
    if constexpr (part::predicts<Predictor>()) predicted_.clear();
  }

  /// A sequence is over: policies forget what they kept for it.
  FERRY_HD void end_sequence(std::uint32_t sequence) noexcept {
    if constexpr (part::EndsSequence<Predictor>) predictor_.end_sequence(sequence);
    if (!live_.end(sequence)) return;
    if constexpr (part::Resets<Cache>) {
      for (Cache& c : caches_) c.reset();
    }
  }

  /// Fills free slots ahead of the first step, best first, by demand copies: the first plan's own queue
  /// behind them. Returns how many of `wanted` it has dealt with: call again with the rest until none is left.
  FERRY_HD std::uint32_t preload(View<const Variant> wanted, const Seen& seen) noexcept {
    begin_call(seen);
    std::uint32_t i = 0;
    for (; i < wanted.size && commands_.submits() < shape_.experts; ++i) {
      const std::uint16_t pool = residency_.pool_of(wanted[i]);
      if (pool == Residency::no_pool || !residency_.has_free(pool)) continue;
      if (residency_.find(wanted[i]) != no_slot) continue;
      admit(residency_.take_free(pool), wanted[i], true, false);
      counters_.of(phase_).bytes -= commands_.bytes_of(wanted[i]);
      counters_.preload_bytes += commands_.bytes_of(wanted[i]);
    }
    return i;
  }

  FERRY_HD Commands commands() const noexcept { return commands_.view(); }
  FERRY_HD const Counters& counters() const noexcept { return counters_; }
  FERRY_HD const Residency& residency() const noexcept { return residency_; }
  FERRY_HD const Shape& shape() const noexcept { return shape_; }
  FERRY_HD const Precisions& precision() const noexcept { return precision_; }
  /// The policy of a pool, with its state: for reports and tests.
  FERRY_HD const Cache& cache(std::uint16_t pool) const noexcept { return caches_[pool]; }
  /// Layers ahead that this stack's predictor wants to be asked for; 0: none.
  FERRY_HD std::uint16_t look_ahead_depth() const noexcept { return depth_; }
  /// Of the predictions made for `layer` from `distance` (1 to the depth) layers before it.
  FERRY_HD Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept {
    if constexpr (part::predicts<Predictor>()) return predicted_.accuracy(distance, layer);
    return {};
  }

 private:
  explicit Core(const Config& c)
      : predictor_(c.predictor),
        precision_(c.precision),
        scheduler_(c.scheduler),
        router_(c.router),
        shape_(c.model),
        transient_prefill_rows_(c.transient_prefill_rows),
        depth_(part::depth_of(c.predictor)) {
    part::check_hooks<Stack>();
    for (std::uint32_t p = 0; p < precision_count; ++p) copy_ns_[p] = c.copy_ns[p];
  }

  void reserve(Carver& carve, const Config& c) {
    const std::size_t routes = std::size_t{shape_.max_rows} * shape_.top_k;
    residency_.reserve(carve, c.model, c.allotment);
    predictor_.reserve(carve, shape_);
    router_.reserve(carve, shape_);
    if constexpr (part::ReservesForModel<Precisions>) precision_.reserve(carve, shape_);
    top_scores_.reserve(carve, shape_, c.top_score_alpha);
    live_.reserve(carve, shape_);
    carve(caches_, c.allotment.pools.size(), c.cache);
    for (std::size_t p = 0; p < c.allotment.pools.size(); ++p) {
      const Pool& pool = c.allotment.pools[p];
      const PoolShape shape{pool.slots, pool.first_layer, pool.layers, shape_.experts};
      if (carve.measuring()) {
        Cache measure = c.cache;
        measure.reserve(carve, shape);
      } else {
        caches_[p].reserve(carve, shape);
      }
    }
    carve(times_, std::size_t{2} * shape_.layers);
    carve(routes_, routes);
    carve(requests_, shape_.experts);
    carve(found_, shape_.experts);
    carve(missing_, shape_.experts);
    carve(tasks_, shape_.experts);
    groups_.reserve(carve, shape_);
    commands_.reserve(carve, c.model, residency_.cache_slots());
    carve(present_, part::needs_residency<Router>() ? shape_.experts : 0);
    carve(asked_, part::substitutes<Router>() ? shape_.experts : 0);
    carve(best_, part::substitutes<Router>() ? shape_.max_rows : 0);
    if constexpr (part::predicts<Predictor>()) predicted_.reserve(carve, shape_, depth_);
  }

  FERRY_HD static std::uint32_t least(std::uint32_t a, std::uint32_t b) noexcept { return a < b ? a : b; }

  FERRY_HD void begin_call(const Seen& seen) noexcept {
    commands_.clear();
    residency_.advance(seen);
  }

  FERRY_HD Ticket next_ticket(bool demand) noexcept { return Ticket{++ticket_ << 1U | (demand ? 0U : 1U)}; }

  /// The copy of `what` into `slot`, whose ticket is set.
  FERRY_HD void submit(std::uint32_t slot, Variant what, bool demand) noexcept {
    const bool hold = !demand && next_deferred_ < arriving_end_;  // invariant 4
    commands_.submit(slot, residency_.slot(slot), what, demand, hold, phase_, counters_);
  }

  /// A queued prefetch is taken back from the link.
  FERRY_HD void drop(std::uint32_t slot) noexcept { commands_.drop(residency_.slot(slot), counters_); }

  FERRY_HD void set_costs(Request& r) const noexcept {
    r.copy_ns = copy_ns_[static_cast<unsigned>(r.want.precision)];
    r.device_ns = measured(r.want.id.layer).device;
    r.host_ns = measured(r.want.id.layer).host;
  }

  /// What look-aheads for `layer` may spend, by the layer planned last.
  FERRY_HD PrefetchWindow window(std::uint16_t layer) const noexcept {
    const Times& t = measured(layer_);
    const auto distance = static_cast<std::uint16_t>(layer > layer_ ? layer - layer_ : layer + shape_.layers - layer_);
    const bool known = t.attention + t.gate + t.device > 0;
    const std::uint32_t on_device = arriving_end_ > 0 ? arriving_end_ : shape_.top_k;
    return {phase_, distance, known ? t.attention + t.gate + t.device * on_device : 0, taken_, taken_ns_};
  }

  /// As measured last in this phase.
  FERRY_HD Times& measured(std::uint16_t layer) noexcept {
    return times_[static_cast<std::size_t>(phase_) * shape_.layers + layer];
  }
  FERRY_HD const Times& measured(std::uint16_t layer) const noexcept {
    return times_[static_cast<std::size_t>(phase_) * shape_.layers + layer];
  }

  /// Sets precisions, and `found_` to what there is of each request's expert.
  FERRY_HD void choose_precision(bool demand, View<Request> requests) noexcept {
    for (std::uint32_t i = 0; i < requests.size; ++i) {
      Request& r = requests[i];
      const std::uint32_t slot = found_[i] = residency_.find({r.want.id, Precision::skip});
      if (slot == no_slot) continue;
      r.state = residency_.slot(slot).state;
      r.held = residency_.slot(slot).what.precision;
    }
    precision_.select(phase_, demand, requests);
    if constexpr (part::substitutes<Router>()) {  // a substitute was chosen for being there: as it is there
      for (Request& r : requests) {
        if (demand && asked_[r.want.id.expert] == 0 && r.held < r.want.precision && r.held != Precision::skip) {
          r.want.precision = r.held;
        }
      }
    }
  }

  /// The slot that satisfies request `i`, and its state.
  FERRY_HD std::uint32_t find(Request& r, std::uint32_t i) noexcept {
    if (found_[i] == no_slot || r.held >= r.want.precision) return found_[i];
    const std::uint32_t slot = residency_.find(r.want);
    r.state = slot == no_slot ? State::absent : residency_.slot(slot).state;
    return slot;
  }

  /// Counts what the gate asked for. Substitutes that it did not ask for are not in `asked_`.
  FERRY_HD void count_requests(View<const Request> requests, View<const Route> routes) noexcept {
    Outcomes& count = counters_.of(phase_);
    if constexpr (part::substitutes<Router>()) {
      for (std::uint8_t& a : asked_) a = 0;
      std::uint32_t asked = 0, run = 0;
      for (const Route& r : routes) {
        const std::uint16_t e = gate_choice(r);
        if (e == no_expert || asked_[e] != 0) continue;
        asked_[e] = 1;
        ++asked;
        if (by_score_) ++(top_scores_[e] ? count.top_requests : count.low_requests);
      }
      for (const Request& r : requests) run += asked_[r.want.id.expert];
      count.requests += asked;
      count.substituted += asked - run;
    } else {
      count.requests += requests.size;
      for (std::uint32_t i = 0; by_score_ && i < requests.size; ++i) {
        ++(top_scores_[requests[i].want.id.expert] ? count.top_requests : count.low_requests);
      }
    }
  }
  /// False for a substitute that the gate did not ask for.
  FERRY_HD bool count(const Request& r, std::uint64_t Outcomes::*outcome) noexcept {
    if constexpr (part::substitutes<Router>()) {
      if (asked_[r.want.id.expert] == 0) return false;
    }
    ++(counters_.of(phase_).*outcome);
    return true;
  }
  /// It is not on the device and no copy has begun: it has to be loaded, or computed on the host.
  FERRY_HD bool count_absent(const Request& r, std::uint64_t Outcomes::*outcome) noexcept {
    if (by_score_) count(r, top_scores_[r.want.id.expert] ? &Outcomes::top_misses : &Outcomes::low_misses);
    return count(r, outcome);
  }

  /// Tells every pool of the layer that this variant serves the gate, before its own pool is touched.
  FERRY_HD void note_use(Variant what) noexcept {
    if constexpr (part::SeesUse<Cache>) {
      residency_.for_each_pool(what.id.layer, [&](std::uint16_t pool) { caches_[pool].used(what); });
    }
  }

  FERRY_HD Plan decide(std::uint16_t layer, bool by_score) noexcept {
    assert(layer < shape_.layers && task_count_ == 0);
    layer_ = layer;
    by_score_ = by_score;
    taken_ = 0;
    taken_ns_ = 0;
    const View<const Route> routes{routes_.data(), rows_ * shape_.top_k};
    Out<Request> gathered{requests_.data(), requests_.size(), 0};
    groups_.template gather<part::needs_unimportance<Precisions>()>(layer, routes, gathered);
    const View<Request> requests = gathered.view();
    predictor_.observe(layer, routes);
    if constexpr (part::predicts<Predictor>()) predicted_.score(layer, routes, best_, counters_.prefetch);
    count_requests(requests, routes);
    choose_precision(true, requests);
    residency_.unmask(layer);

    std::uint32_t missing = 0, late = 0;
    task_count_ = 0;
    for (std::uint32_t n = 0; n < requests.size; ++n) {  // what is there is touched first, so that no miss evicts it
      Request& r = requests[n];
      std::uint32_t slot = find(r, n);
      if (r.state == State::queued && residency_.slot(slot).what != r.want) {
        slot = no_slot;  // another precision than is wanted, and its copy has not begun: it is taken back
        r.state = State::absent;
      }
      const bool there = r.state == State::resident || r.state == State::in_flight;
      if (!there && r.want.precision == Precision::skip) {
        count(r, &Outcomes::skipped);
        for (std::uint32_t i = 0; i < r.rows; ++i) routes_[groups_.assignments()[r.first + i]] = {};
        continue;
      }
      if (slot != no_slot) residency_.lease(slot);
      if (!there) {
        missing_[missing] = r;
        set_costs(missing_[missing++]);
        continue;
      }
      use(slot);
      if (r.state == State::resident) {
        count(r, &Outcomes::hits);
        add_task(r, residency_.slot(slot).what, slot, Ticket::none);
      } else {
        count(r, &Outcomes::late_hits);
        ++late;
      }
    }
    resident_end_ = task_count_;
    for (std::uint32_t i = 0; late > 0 && i < requests.size; ++i) {
      if (requests[i].state != State::in_flight) continue;
      const std::uint32_t slot = residency_.find(requests[i].want);
      add_task(requests[i], residency_.slot(slot).what, slot, residency_.slot(slot).ticket);
      for (std::uint32_t at = task_count_ - 1; at > resident_end_ && tasks_[at].ready < tasks_[at - 1].ready; --at) {
        const Task later = tasks_[at - 1];  // in the order in which they land
        tasks_[at - 1] = tasks_[at];
        tasks_[at] = later;
      }
    }

    View<Request> misses{missing_.data(), missing};
    scheduler_.order(phase_, true, misses);
    const std::uint32_t loaded = least(missing, scheduler_.split(phase_, misses));
    for (const Request& r : misses.part(loaded, missing - loaded)) {
      if (r.state == State::queued) residency_.cancel_lease(residency_.find(r.want));
    }
    drop_stale(layer);
    load(misses.part(0, loaded));
    arriving_end_ = task_count_;
    for (const Request& r : misses.part(loaded, missing - loaded)) {
      count_absent(r, &Outcomes::host_computed);
      note_use(r.want);
      if (const std::uint16_t pool = residency_.pool_of(r.want); pool != Residency::no_pool) {
        caches_[pool].touch(r.want, no_slot);
      }
      add_task(r, r.want, no_slot, Ticket::none);
    }
    return {routes,
            {groups_.assignments(), routes.size},
            {tasks_.data(), resident_end_},
            {tasks_.data() + resident_end_, arriving_end_ - resident_end_},
            {tasks_.data() + arriving_end_, task_count_ - arriving_end_}};
  }

  FERRY_HD Task& add_task(const Request& r, Variant what, std::uint32_t slot, Ticket ready) noexcept {
    Task& t = tasks_[task_count_++];
    t = {what, slot, r.first, r.rows, no_task, ready, false};
    return t;
  }

  /// The gate asked for what is in this slot (or on its way there).
  FERRY_HD void use(std::uint32_t slot) noexcept {
    Residency::Slot& s = residency_.slot(slot);
    if (s.unused_prefetch) ++counters_.prefetch.used;
    s.unused_prefetch = false;
    note_use(s.what);
    caches_[s.pool].touch(s.what, slot - residency_.first_slot(s.pool));
  }

  /// Demand copies: into the pool while there is room for them, through the stream slots in waves otherwise.
  FERRY_HD void load(View<const Request> misses) noexcept {
    std::uint32_t streamed = 0;
    std::uint16_t spared = Residency::no_pool, taken = Residency::no_pool;  // nothing to be had there
    for (std::uint32_t i = 0; i < misses.size; ++i) {  // requests for the stream come to the front of missing_
      const Request& r = misses[i];
      if (count_absent(r, &Outcomes::misses)) counters_.of(phase_).miss_bytes += commands_.bytes_of(r.want);
      note_use(r.want);
      const std::uint16_t pool = residency_.pool_of(r.want);
      std::uint32_t slot = r.state == State::queued ? residency_.find(r.want) : no_slot;
      if (slot != no_slot) {
        drop(slot);
        residency_.promote(slot, next_ticket(true), phase_);
        const Residency::Slot& s = residency_.slot(slot);
        caches_[s.pool].touch(s.what, slot - residency_.first_slot(s.pool));
        submit(slot, s.what, true);
      } else {
        if (pool != Residency::no_pool) {
          caches_[pool].touch(r.want, no_slot);
          slot = make_room(r.want, Residency::for_prefetch, spared);
          if (slot == no_slot) slot = make_room(r.want, Residency::for_demand, taken);
        }
        if (slot == no_slot) {
          missing_[streamed++] = r;
          continue;
        }
        admit(slot, r.want, true);
      }
      residency_.lease(slot);
      add_task(r, r.want, slot, residency_.slot(slot).ticket);
    }
    const std::uint32_t first = task_count_;
    const std::uint32_t slots = residency_.stream_slots();
    for (std::uint32_t i = 0; i < streamed; ++i) {
      const std::uint32_t slot = residency_.cache_slots() + stream_next_;
      stream_next_ = stream_next_ + 1 == slots ? 0 : stream_next_ + 1;
      Task& t = add_task(missing_[i], missing_[i].want, slot, next_ticket(true));
      t.transient = true;
      if (i < slots) {
        stream(t);
      } else {
        t.freed_by = first + i - slots - resident_end_;
      }
    }
    next_deferred_ = first + least(streamed, slots);
  }

  /// A task's copy into its stream slot starts.
  FERRY_HD void stream(const Task& t) noexcept {
    residency_.lease(t.slot);
    residency_.slot(t.slot).ticket = t.ready;
    submit(t.slot, t.what, true);
  }

  /// A slot of the pool for `incoming`, empty: a free one, or the victim's; `no_slot` if there is none. `closed` is a
  /// pool where these bars are on every slot, and stay until the call of the core is over.
  FERRY_HD std::uint32_t make_room(Variant incoming, std::uint8_t bars, std::uint16_t& closed) noexcept {
    const std::uint16_t pool = residency_.pool_of(incoming);
    if (pool == Residency::no_pool || pool == closed || residency_.pool_slots(pool) == 0) return no_slot;
    if (residency_.has_free(pool)) return residency_.take_free(pool);
    if (phase_ == Phase::prefill && rows_ > transient_prefill_rows_) return no_slot;  // invariant 8
    const std::uint32_t local = caches_[pool].victim(incoming, residency_.barred(pool, bars));
    if (local == no_slot) {  // or the policy refuses this one alone
      if (residency_.all_barred(pool, bars)) closed = pool;
      return no_slot;
    }
    const std::uint32_t slot = residency_.first_slot(pool) + local;
    const Residency::Slot& s = residency_.slot(slot);
    if (s.state == State::queued) {
      drop(slot);
    } else if (s.unused_prefetch) {
      counters_.prefetch.wasted_bytes += commands_.bytes_of(s.what);
    }
    residency_.evict(slot);
    return slot;
  }

  FERRY_HD void admit(std::uint32_t slot, Variant what, bool demand, bool access = true) noexcept {
    const Ticket ticket = next_ticket(demand);
    residency_.admit(slot, what, ticket, demand, phase_);
    const Residency::Slot& s = residency_.slot(slot);
    caches_[s.pool].replace(slot - residency_.first_slot(s.pool), what, demand && access);
    submit(slot, what, demand);
  }

  /// Prefetches of a layer that is planned come too late unless they have begun, or were promoted (leased).
  FERRY_HD void drop_stale(std::uint16_t layer) noexcept {
    residency_.for_each_queued(layer, [&](std::uint32_t slot) {
      if (residency_.is_leased(slot)) return;
      drop(slot);
      const std::uint16_t pool = residency_.slot(slot).pool;
      residency_.release(slot);
      if constexpr (part::Forgets<Cache>) caches_[pool].forget(slot - residency_.first_slot(pool));
    });
  }

  FERRY_HD void end_leases() noexcept {
    const Fence fence{++fence_};
    for (std::uint32_t i = 0; i < task_count_; ++i) {
      const std::uint32_t slot = tasks_[i].slot;
      if (slot != no_slot && residency_.is_leased(slot)) residency_.end_lease(slot, fence);
    }
    task_count_ = resident_end_ = arriving_end_ = next_deferred_ = 0;
    commands_.submit_held();
  }

  Residency residency_;
  Predictor predictor_;
  Precisions precision_;
  typename Stack::scheduler scheduler_;
  Router router_;
  Shape shape_;
  Array<Cache> caches_;                ///< [pools]
  Array<Times> times_;                 ///< [phases, layers]
  Array<Route> routes_;                ///< [rows, k]
  Array<Request> requests_, missing_;  ///< [experts]
  Array<std::uint32_t> found_;         ///< [experts] of each request, the slot of the best variant there is
  Array<Task> tasks_;                  ///< [experts]: resident, arriving, host
  Array<State> present_;               ///< [experts], for routers that need it
  Array<std::uint8_t> asked_;          ///< [experts], what the gate chose, for routers that substitute
  Array<std::uint16_t> best_;          ///< [rows], the gate's first choice, for routers that substitute
  detail::PredictionRecord predicted_;
  detail::TopScores top_scores_;
  detail::LiveSequences live_;
  detail::ExpertGroups groups_;
  detail::CommandList commands_;
  Counters counters_;
  Nanoseconds copy_ns_[precision_count] = {};
  std::uint64_t ticket_ = 0, fence_ = 0;
  std::uint32_t rows_ = 0, transient_prefill_rows_ = 0;
  std::uint32_t task_count_ = 0, resident_end_ = 0, arriving_end_ = 0, next_deferred_ = 0, stream_next_ = 0;
  std::uint32_t taken_ = 0;  ///< by look-aheads since the plan
  Nanoseconds taken_ns_ = 0;
  std::uint16_t layer_ = 0, depth_ = 0;
  Phase phase_ = Phase::decode;
  bool by_score_ = false;  ///< `top_scores_` is of this layer
};

}  // namespace ferry::inline FERRY_ABI
