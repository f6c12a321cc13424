/// @file
/// Slots, the policies that choose victims among them, and the copies that fill them.
#pragma once
#include <cassert>

#include "ferry/detail/accounts.hpp"
#include "ferry/detail/command_list.hpp"
#include "ferry/residency.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Residency with a CachePolicy a pool, which is told all that happens in it, and the commands that go with each
/// change. Every change is accounted for.
template <class Stack>
class CachedSlots {
  using Cache = typename Stack::cache;
  static constexpr bool predicts = part::predicts<typename Stack::predictor>();

 public:
  /// `depth`: for how many layers ahead predictions are compared; `top_score_alpha`: CoreConfig's.
  void reserve(Carver& carve, const ModelShape& model, const Allotment& allotment, const Cache& cache,
               std::uint16_t depth, float top_score_alpha) {
    residency_.reserve(carve, model, allotment);
    accounts_.reserve(carve, model, depth, top_score_alpha);
    carve(caches_, allotment.pools.size(), cache);
    for (std::size_t p = 0; p < allotment.pools.size(); ++p) {
      const Pool& pool = allotment.pools[p];
      const PoolShape shape{pool.slots, pool.first_layer, pool.layers, model.experts};
      if (carve.measuring()) {
        Cache measure = cache;
        measure.reserve(carve, shape);
      } else {
        caches_[p].reserve(carve, shape);
      }
    }
    commands_.reserve(carve, model.experts, allotment.slots());
  }

  FERRY_HD const Residency& residency() const noexcept { return residency_; }
  FERRY_HD const Cache& cache(std::uint16_t pool) const noexcept { return caches_[pool]; }
  FERRY_HD std::uint16_t pools() const noexcept { return static_cast<std::uint16_t>(caches_.size()); }
  FERRY_HD ExpertId wanted(std::uint16_t pool) noexcept { return caches_[pool].wanted(); }
  FERRY_HD Commands commands() const noexcept { return commands_.view(); }
  FERRY_HD Accounts<Stack>& accounts() noexcept { return accounts_; }
  FERRY_HD const Accounts<Stack>& accounts() const noexcept { return accounts_; }

  /// `only_free`: what is not there is admitted to free slots only (invariant 8).
  FERRY_HD void begin_step(const Step& step, bool only_free) noexcept {
    phase_ = step.phase;
    only_free_ = only_free;
    if constexpr (part::BeginsStep<Cache>) {
      for (Cache& c : caches_) c.begin_step(step);
    }
    commands_.clear();
  }
  FERRY_HD void begin_call(const Seen& seen) noexcept {
    commands_.clear();
    residency_.advance(seen);
  }
  FERRY_HD void begin_call() noexcept { commands_.clear(); }
  FERRY_HD void reset() noexcept {
    if constexpr (part::Resets<Cache>) {
      for (Cache& c : caches_) c.reset();
    }
  }

  FERRY_HD void observe(const Scores& scores) noexcept {
    if constexpr (part::ObservesScores<Cache>) {
      residency_.for_each_pool(scores.layer, [&](std::uint16_t pool) { caches_[pool].observe(scores); });
    }
  }
  /// What the rows of a layer chose, [rows, k].
  FERRY_HD void chosen(std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) noexcept {
    if constexpr (part::SeesChoices<Cache>) {
      residency_.for_each_pool(layer, [&](std::uint16_t pool) { caches_[pool].chosen(layer, taken, rows); });
    }
  }
  /// Experts of one layer.
  FERRY_HD void saved(View<const Request> uses, std::uint32_t rows, Nanoseconds each) noexcept {
    if (uses.size == 0) return;
    residency_.for_each_pool(uses[0].want.id.layer, [&](std::uint16_t pool) { caches_[pool].saved(uses, rows, each); });
  }
  /// How much more its place would save with it; 0 if it has none.
  FERRY_HD Nanoseconds gain(const Request& miss) const noexcept {
    if constexpr (part::Gains<Cache>) {
      const std::uint16_t pool = residency_.pool_of(miss.want);
      return pool == Residency::no_pool ? 0 : caches_[pool].gain(miss);
    }
    return 0;
  }
  /// Where several misses would gain the same place, only the first of them does.
  FERRY_HD View<Request> share_gain(View<Request> misses) const noexcept {
    if constexpr (part::SaysWhoGains<Cache>) {
      if (misses.size < 2) return misses;
      const std::uint16_t pool = residency_.pool_of(misses[0].want);
      if (pool == Residency::no_pool || caches_[pool].each_gains()) return misses;
      for (Request& r : misses.part(1, misses.size - 1)) r.gain_ns = 0;
    }
    return misses;
  }
  /// Of the misses of a layer so many are loaded.
  FERRY_HD void loaded(std::uint16_t layer, std::uint32_t loads, std::uint32_t misses) noexcept {
    if constexpr (part::SeesLoads<Cache>) {
      residency_.for_each_pool(layer, [&](std::uint16_t pool) { caches_[pool].loaded(layer, loads, misses); });
    }
  }
  FERRY_HD void finished(std::uint16_t layer) noexcept {
    if constexpr (part::SeesLayersEnd<Cache>) {
      residency_.for_each_pool(layer, [&](std::uint16_t pool) {
        caches_[pool].finished(layer);
        if constexpr (part::GoesOn<Cache>) {
          const std::uint32_t next = pool + 1U < caches_.size() ? pool + 1U : 0;
          if (next != pool) caches_[next].goes_on(caches_[pool]);
        }
      });
    }
  }
  /// `present`: [experts], where each expert of a layer is, at its best precision.
  FERRY_HD void states(std::uint16_t layer, Array<State>& present) const noexcept {
    for (State& s : present) s = State::absent;
    residency_.for_each_held(layer, [&](ExpertId id) { present[id.expert] = residency_.state({id, Precision::skip}); });
  }

  /// Sets slot, state and precision held to the best variant of the expert that there is.
  FERRY_HD FERRY_HOT void find_best(Request& r) const noexcept {
    r.slot = residency_.find({r.want.id, Precision::skip});
    if (r.slot == no_slot) return;
    const Residency::Slot& s = residency_.slot(r.slot);
    r.state = s.state;
    r.held = s.what.precision;
  }
  /// The same, behind find_best, for a variant that satisfies `Request::want`.
  FERRY_HD FERRY_HOT void find_wanted(Request& r) const noexcept {
    if (r.slot == no_slot || r.held >= r.want.precision) return;
    r.slot = residency_.find(r.want);
    r.state = r.slot == no_slot ? State::absent : residency_.slot(r.slot).state;
  }

  FERRY_HD void mask(std::uint32_t slot, std::uint16_t layer) noexcept {
    if (!residency_.is_stream(slot)) residency_.mask(slot, layer);  // prefetches evict nothing from stream slots
  }
  FERRY_HD void unmask(std::uint16_t layer) noexcept { residency_.unmask(layer); }
  FERRY_HD void lease(std::uint32_t slot) noexcept { residency_.lease(slot); }
  FERRY_HD void cancel_lease(std::uint32_t slot) noexcept { residency_.cancel_lease(slot); }
  FERRY_HD void end_lease(std::uint32_t slot, Fence reader) noexcept {
    residency_.end_lease(slot, reader);
    if (predicts && residency_.is_staged(slot)) unstage(slot);
  }

  /// The gate asked for what is in this slot (or on its way there).
  FERRY_HD void use(std::uint32_t slot) noexcept {
    const Residency::Slot& s = residency_.slot(slot);
    if (residency_.use(slot)) accounts_.used_prefetch(s.what);
    note_use(s.what);
    touch(slot);
  }
  /// The gate asked for what is nowhere, or for what is on its way and the host computes. False if no pool would have it.
  FERRY_HD bool use_absent(const Variant& what) noexcept {
    note_use(what);
    return touch_absent(what);
  }

  FERRY_HD Ticket next_ticket(bool demand) noexcept { return Ticket{++ticket_ << 1U | (demand ? 0U : 1U)}; }

  /// A queued prefetch that the gate asks for becomes a demand copy into the same slot.
  FERRY_HD void expedite(std::uint32_t slot) noexcept {
    note_use(residency_.slot(slot).what);
    drop(slot);
    residency_.expedite(slot, next_ticket(true), phase_);
    touch(slot);
    submit(slot, residency_.slot(slot).what, true, false);
  }

  /// Returns an empty slot of the pool that `incoming` belongs to: a free one, or the victim's after it was evicted; `no_slot`
  /// if there is none. `is_worth(cache, victim)` is asked before anything is evicted, with `no_slot` for a free slot. `closed`
  /// is set to the pool if each of its slots has one of the bars: bars stay until this call of the core is over, so that
  /// nobody needs to look again.
  template <class IsWorth>
  FERRY_HD std::uint32_t make_room(const Variant& incoming, std::uint8_t bars, std::uint16_t& closed,
                                   const IsWorth& is_worth) noexcept {
    const std::uint16_t pool = residency_.pool_of(incoming);
    if (pool == Residency::no_pool || pool == closed || residency_.pool_slots(pool) == 0) return no_slot;
    if (residency_.has_free(pool)) return is_worth(caches_[pool], no_slot) ? residency_.take_free(pool) : no_slot;
    if (only_free_) return no_slot;
    const Barred barred = residency_.barred(pool, bars);
    const std::uint32_t victim = caches_[pool].victim(incoming, barred);
    assert(victim == no_slot || (victim < residency_.pool_slots(pool) && !barred[victim]));
    if (victim >= residency_.pool_slots(pool) || barred[victim]) {  // or the policy refuses this one alone
      if (residency_.all_barred(pool, bars)) closed = pool;
      return no_slot;
    }
    if (!is_worth(caches_[pool], victim)) return no_slot;
    const std::uint32_t slot = residency_.first_slot(pool) + victim;
    const Residency::Slot& s = residency_.slot(slot);
    if (s.state == State::queued) {
      drop(slot);
    } else if (s.unused_prefetch) {
      accounts_.wasted_prefetch(s.what);
    }
    residency_.evict(slot);
    return slot;
  }
  FERRY_HD std::uint32_t make_room(const Variant& incoming, std::uint8_t bars, std::uint16_t& closed) noexcept {
    return make_room(incoming, bars, closed, [](const Cache&, std::uint32_t) { return true; });
  }

  /// Copies `what` into an empty slot. `hold`: a prefetch that has to wait for demand copies known (invariant 4).
  FERRY_HD void admit(std::uint32_t slot, const Variant& what, bool demand, bool hold = false) noexcept {
    move_in(slot, what, demand, demand, hold);
  }
  /// A demand copy before the first step, if there is a free slot for it. It does not count as an access.
  FERRY_HD void preload(const Variant& what) noexcept {
    const std::uint16_t pool = residency_.pool_of(what);
    if (pool == Residency::no_pool || !residency_.has_free(pool) || residency_.find(what) != no_slot) return;
    move_in(residency_.take_free(pool), what, true, false, false);
    accounts_.preloaded(what);
  }

  /// The next stream slot in turn that has neither a task nor a prefetched expert; `no_slot` if there is none.
  FERRY_HD std::uint32_t free_stream_slot() noexcept {
    for (std::uint32_t i = 0; i < residency_.stream_slots(); ++i) {
      const std::uint32_t slot = residency_.cache_slots() + stream_next_;
      take_turn(slot);
      if (!residency_.is_leased(slot) && !residency_.is_staged(slot)) return slot;
    }
    return no_slot;
  }
  /// The turn goes on behind this one.
  FERRY_HD void take_turn(std::uint32_t stream_slot) noexcept {
    stream_next_ = stream_slot + 1 == residency_.slots() ? 0 : stream_slot + 1 - residency_.cache_slots();
  }
  /// A prefetch goes into a free stream slot, where the layer that was predicted finds it.
  FERRY_HD void stage(std::uint32_t stream_slot, const Variant& what) noexcept {
    residency_.admit(stream_slot, what, next_ticket(false), false, phase_);
    submit(stream_slot, what, false, false);
    ++staged_;
  }
  /// What was prefetched into stream slots and is not asked for (leased) makes room.
  FERRY_HD void drop_unasked() noexcept {
    for (std::uint32_t s = residency_.cache_slots(); staged_ > 0 && s < residency_.slots(); ++s) {
      if (!residency_.is_staged(s) || residency_.is_leased(s)) continue;
      if (residency_.slot(s).state == State::queued) {
        drop(s);
      } else {
        accounts_.wasted_prefetch(residency_.slot(s).what);
      }
      unstage(s);
    }
  }
  /// A task's copy into its stream slot starts.
  FERRY_HD void stream(const Task& t) noexcept {
    residency_.stream(t.slot, t.ready);
    submit(t.slot, t.what, true, false);
  }
  FERRY_HD void submit_held() noexcept { commands_.submit_held(); }

  /// Prefetches of a layer that is planned come too late unless they have begun, or are asked for (leased).
  FERRY_HD void drop_stale(std::uint16_t layer) noexcept {
    residency_.for_each_queued(layer, [&](std::uint32_t slot) {
      if (residency_.is_leased(slot) || residency_.is_stream(slot)) return;
      drop(slot);
      residency_.release(slot);
      if constexpr (part::Forgets<Cache>) caches_[residency_.slot(slot).pool].forget(local(slot));
    });
    if constexpr (predicts) drop_unasked();
  }

  FERRY_HD std::uint32_t submits() const noexcept { return commands_.submits(); }

 private:
  FERRY_HD std::uint32_t local(std::uint32_t slot) const noexcept {
    return slot - residency_.first_slot(residency_.slot(slot).pool);
  }

  /// The gate's use of what is in a slot, or on its way there. For a cache policy what is in a stream slot is absent.
  FERRY_HD void touch(std::uint32_t slot) noexcept {
    const Residency::Slot& s = residency_.slot(slot);
    if (predicts && residency_.is_stream(slot)) {
      touch_absent(s.what);
    } else {
      caches_[s.pool].touch(s.what, local(slot));
    }
  }
  /// False if no pool would have it.
  FERRY_HD bool touch_absent(const Variant& what) noexcept {
    const std::uint16_t pool = residency_.pool_of(what);
    if (pool == Residency::no_pool) return false;
    caches_[pool].touch(what, no_slot);
    return true;
  }
  FERRY_HD void unstage(std::uint32_t slot) noexcept {
    residency_.unstage(slot);
    --staged_;
  }

  /// Tells every pool of the layer that this variant serves the gate, before its own pool is touched.
  FERRY_HD void note_use(const Variant& what) noexcept {
    if constexpr (part::SeesUse<Cache>) {
      residency_.for_each_pool(what.id.layer, [&](std::uint16_t pool) { caches_[pool].used(what); });
    }
  }
  FERRY_HD void move_in(std::uint32_t slot, const Variant& what, bool demand, bool access, bool hold) noexcept {
    residency_.admit(slot, what, next_ticket(demand), demand, phase_);
    caches_[residency_.slot(slot).pool].replace(local(slot), what, access);
    submit(slot, what, demand, hold);
  }
  FERRY_HD void submit(std::uint32_t slot, const Variant& what, bool demand, bool hold) noexcept {
    commands_.submit(slot, residency_.slot(slot), what, demand, hold);
    accounts_.submitted(what, demand);
  }
  /// A queued prefetch is taken back from the link.
  FERRY_HD void drop(std::uint32_t slot) noexcept {
    const Residency::Slot& s = residency_.slot(slot);
    commands_.drop(s.ticket);
    accounts_.dropped(s.what, s.submitted_in);
  }

  Residency residency_;
  Array<Cache> caches_;  ///< [pools]
  CommandList commands_;
  std::uint64_t ticket_ = 0;
  std::uint32_t stream_next_ = 0;  ///< counted from the first stream slot
  std::uint32_t staged_ = 0;       ///< stream slots with a prefetched expert
  Phase phase_ = Phase::decode;
  bool only_free_ = false;
  Accounts<Stack> accounts_;
};

}  // namespace ferry::inline FERRY_ABI::detail
