/// @file
/// Who sits in which slot: states, leases, bars, free slots. Owns invariants 1 to 4 of docs/design.md.
#pragma once
#include <cassert>

#include "ferry/allotment.hpp"
#include "ferry/concepts.hpp"
#include "ferry/detail/expert_set.hpp"

namespace ferry::inline FERRY_ABI {

/// A first-in-first-out queue of at most `capacity` entries that also allows removal from the middle.
template <class T>
class CopyQueue {
 public:
  /// Room for `capacity` of them.
  void reserve(Carver& carve, std::size_t capacity) { carve(ring_, capacity); }

  /// Whether none waits.
  FERRY_HD bool empty() const noexcept { return size_ == 0; }
  /// How many wait.
  FERRY_HD std::uint32_t size() const noexcept { return size_; }
  /// The i-th to wait, from the oldest.
  FERRY_HD T& operator[](std::uint32_t i) noexcept { return ring_[wrap(head_ + i)]; }
  /// Behind all others. There is room for as many as `reserve` said.
  FERRY_HD void push(const T& value) noexcept {
    assert(size_ < ring_.size());
    ring_[wrap(head_ + size_++)] = value;
  }
  /// Takes the oldest away.
  FERRY_HD void pop() noexcept {
    head_ = wrap(head_ + 1);
    --size_;
  }
  /// Takes the one at this place away; those behind it move up.
  FERRY_HD void erase(std::uint32_t at) noexcept {
    for (; at + 1 < size_; ++at) (*this)[at] = (*this)[at + 1];
    --size_;
  }

 private:
  FERRY_HD std::uint32_t wrap(std::uint32_t i) const noexcept { return i >= ring_.size() ? i - ring_.size() : i; }

  Array<T> ring_;
  std::uint32_t head_ = 0, size_ = 0;
};

/// Slots and what they hold.
///
/// Bars keep a slot from being evicted; their precedence is lease > in flight > queued or masked, and the
/// last two yield to demand. Calls are O(1) unless they say otherwise; taking a queued prefetch or a mask away is O(their
/// number).
class Residency {
 public:
  /// Why a slot must not be evicted.
  enum Bar : std::uint8_t {
    leased = 1,     ///< a task of this step has still to read it
    in_flight = 2,  ///< a copy into it can no longer be taken back
    queued = 4,     ///< a prefetch into it has not begun
    masked = 8      ///< a prediction of a later layer names what it holds
  };
  static constexpr std::uint8_t for_demand = leased | in_flight;  ///< what a demand copy must not evict
  static constexpr std::uint8_t for_prefetch =
      leased | in_flight | queued | masked;  ///< what a prefetch must not evict

  /// A slot and what it holds.
  struct Slot {
    Variant what;                        ///< valid while `state` is not absent
    State state = State::absent;         ///< absent: free
    bool unused_prefetch = false;        ///< came by a prefetch and was not asked for yet
    Phase submitted_in = Phase::decode;  ///< of the copy that filled it
    std::uint16_t pool = 0;              ///< whose slot it is
    std::uint16_t masked_for = 0;        ///< layer whose plan ends the mask
    Ticket ticket = Ticket::none;        ///< of that copy
    Fence last_reader = Fence::none;     ///< until when its bytes are read
  };

  /// Room for the slots of `allotment`. Runs twice, first to measure.
  void reserve(Carver& carve, const ModelShape& model, const Allotment& allotment) {
    experts_ = model.experts;
    cache_slots_ = allotment.slots() - allotment.stream_slots;
    stream_slots_ = allotment.stream_slots;
    std::uint8_t stored = 0;
    for (const Pool& p : allotment.pools) stored = static_cast<std::uint8_t>(stored | p.precisions);
    // Without pools there still are stream slots, and what is prefetched there has to be found.
    for (std::uint32_t p = 1; allotment.pools.empty() && p < precision_count; ++p) {
      if (model.least_bytes(static_cast<Precision>(p)) > 0) stored = static_cast<std::uint8_t>(stored | 1U << p);
    }
    columns_ = 0;
    for (std::uint32_t p = 0; p < precision_count; ++p) {
      column_[p] = columns_;
      if ((1U << p & stored) != 0) precision_of_[columns_++] = static_cast<Precision>(p);
    }
    stored_ = stored;
    carve(slots_, allotment.slots());
    carve(bars_, allotment.slots(), std::uint8_t{0});
    carve(slot_of_, std::size_t{model.layers} * model.experts * columns_, no_slot);
    carve(pool_of_, std::size_t{model.layers} * columns_, no_pool);
    carve(pools_of_, std::size_t{model.layers} * columns_, no_pool);
    carve(pools_, allotment.pools.size());
    carve(free_, cache_slots_);
    demand_.reserve(carve, std::size_t{allotment.slots()} + 1);
    prefetch_.reserve(carve, std::size_t{allotment.slots()} + 1);
    carve(masks_, cache_slots_);
    held_.reserve(carve, model.layers, model.experts);
    mask_count_ = 0;
    if (carve.measuring()) return;
    std::uint32_t first = 0;
    for (std::uint16_t p = 0; p < pools_.size(); ++p) {
      const Pool& spec = allotment.pools[p];
      pools_[p] = {first, spec.slots, spec.slots};
      for (std::uint32_t i = 0; i < spec.slots; ++i) {
        slots_[first + i].pool = p;
        free_[first + i] = first + spec.slots - 1 - i;  // a stack: the lowest slot is on top
      }
      first += spec.slots;
      for (std::uint16_t l = spec.first_layer; l < spec.first_layer + spec.layers; ++l) {
        for (std::uint32_t c = 0; c < columns_; ++c) {
          if ((spec.precisions >> static_cast<unsigned>(precision_of_[c]) & 1U) != 0) pool_of_[l * columns_ + c] = p;
        }
      }
    }
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      std::uint32_t known = 0;
      for (std::uint32_t c = 0; c < columns_; ++c) {
        const std::uint16_t pool = pool_of_[l * columns_ + c];
        std::uint32_t i = 0;
        while (i < known && pools_of_[l * columns_ + i] != pool) ++i;
        if (i == known && pool != no_pool) pools_of_[l * columns_ + known++] = pool;
      }
    }
  }

  static constexpr std::uint16_t no_pool = 0xffffU;  ///< of a layer without slots

  /// How many slots are in pools; they come first.
  FERRY_HD std::uint32_t cache_slots() const noexcept { return cache_slots_; }
  /// How many stream slots there are; they come last.
  FERRY_HD std::uint32_t stream_slots() const noexcept { return stream_slots_; }
  /// All of them.
  FERRY_HD std::uint32_t slots() const noexcept { return slots_.size(); }
  /// What a slot holds.
  FERRY_HD const Slot& slot(std::uint32_t s) const noexcept { return slots_[s]; }
  /// Whether a task may still read it.
  FERRY_HD bool is_leased(std::uint32_t s) const noexcept { return (bars_[s] & leased) != 0; }
  /// Whether it is a stream slot.
  FERRY_HD bool is_stream(std::uint32_t s) const noexcept { return s >= cache_slots_; }
  /// A stream slot that waits for its layer with an expert in it, or on its way.
  FERRY_HD bool is_staged(std::uint32_t s) const noexcept { return slots_[s].state != State::absent && is_stream(s); }

  /// The slot of the best variant that satisfies `want` (any, for `Precision::skip`): one that is resident, else in
  /// flight, else queued; `no_slot` if none. Precision at least as high as wanted satisfies.
  FERRY_HD FERRY_HOT std::uint32_t find(Variant want) const noexcept {
    const std::uint32_t* const slots = slot_of_.data() + index(want.id, 0);
    if (columns_ == 1) return want.precision <= precision_of_[0] ? slots[0] : no_slot;
    std::uint32_t best = no_slot;
    for (std::uint32_t c = columns_; c-- > 0 && precision_of_[c] >= want.precision;) {
      const std::uint32_t s = slots[c];
      if (s != no_slot && (best == no_slot || slots_[s].state > slots_[best].state)) best = s;
    }
    return best;
  }
  /// Of the best variant that satisfies `want`.
  FERRY_HD State state(Variant want) const noexcept {
    const std::uint32_t s = find(want);
    return s == no_slot ? State::absent : slots_[s].state;
  }

  /// The pool where a variant lives; `no_pool` if its layer has none.
  FERRY_HD std::uint16_t pool_of(Variant v) const noexcept {
    if ((stored_ >> static_cast<unsigned>(v.precision) & 1U) == 0) return no_pool;
    return pool_of_[v.id.layer * columns_ + column_[static_cast<unsigned>(v.precision)]];
  }
  /// Calls `f(pool)` for each pool that a layer has, once.
  template <class F>
  FERRY_HD void for_each_pool(std::uint16_t layer, F&& f) const noexcept {
    const std::uint16_t* const pools = pools_of_.data() + layer * columns_;
    for (std::uint32_t i = 0; i < columns_ && pools[i] != no_pool; ++i) f(pools[i]);
  }
  /// Calls `f(id)` for each expert of a layer that has a slot, in ascending order.
  template <class F>
  FERRY_HD void for_each_held(std::uint16_t layer, F&& f) const noexcept {
    held_.for_each(layer, [&](std::uint16_t e) { f(ExpertId{layer, e}); });
  }
  /// Prefetches that are queued or on the link.
  FERRY_HD std::uint32_t prefetches() const noexcept { return prefetch_.size(); }
  /// How many experts of a layer have a slot. O(E / 64).
  FERRY_HD std::uint32_t held(std::uint16_t layer) const noexcept { return held_.size(layer); }
  /// The number of a pool's first slot.
  FERRY_HD std::uint32_t first_slot(std::uint16_t pool) const noexcept { return pools_[pool].first; }
  /// How many slots a pool has.
  FERRY_HD std::uint32_t pool_slots(std::uint16_t pool) const noexcept { return pools_[pool].slots; }
  /// Whether a slot of the pool is free.
  FERRY_HD bool has_free(std::uint16_t pool) const noexcept { return pools_[pool].free > 0; }
  /// Which slots of the pool such bars keep, by pool-local index.
  FERRY_HD Barred barred(std::uint16_t pool, std::uint8_t bars) const noexcept {
    return {bars_.data() + pools_[pool].first, bars};
  }

  /// Whether each slot of the pool has one of these bars. O(slots in front of the first that has none).
  FERRY_HD bool all_barred(std::uint16_t pool, std::uint8_t bars) const noexcept {
    const std::uint8_t* const flags = bars_.data() + pools_[pool].first;
    std::uint32_t s = 0;
    while (s < pools_[pool].slots && (flags[s] & bars) != 0) ++s;
    return s == pools_[pool].slots;
  }

  /// Takes a free slot of the pool (there must be one).
  FERRY_HD std::uint32_t take_free(std::uint16_t pool) noexcept {
    PoolState& p = pools_[pool];
    return free_[p.first + --p.free];
  }

  /// Empties a cache slot without freeing it: the caller puts something else in.
  FERRY_HD void evict(std::uint32_t s) noexcept {
    Slot& slot = slots_[s];
    if (slot.state == State::absent) return;
    assert((bars_[s] & for_demand) == 0);
    if (slot.state == State::queued) take_back(s);
    if ((bars_[s] & masked) != 0) drop_mask(s);
    unmap(slot);
    slot.state = State::absent;
    bars_[s] = 0;
  }

  /// `what` moves into an empty slot by the copy `ticket`.
  FERRY_HD void admit(std::uint32_t s, const Variant& what, Ticket ticket, bool demand, Phase phase) noexcept {
    Slot& slot = slots_[s];
    assert(slot.state == State::absent);
    slot.what = what;
    slot_of_[index(what.id, column_[static_cast<unsigned>(what.precision)])] = s;
    held_.add(what.id.layer, what.id.expert);
    fill(s, ticket, demand, phase);
  }

  /// A queued prefetch becomes a demand copy into the same slot, with a new ticket.
  FERRY_HD void expedite(std::uint32_t s, Ticket ticket, Phase phase) noexcept {
    take_back(s);
    fill(s, ticket, true, phase);
  }

  /// A queued prefetch is taken back: its slot is free again.
  FERRY_HD void release(std::uint32_t s) noexcept {
    evict(s);
    PoolState& p = pools_[slots_[s].pool];
    free_[p.first + p.free++] = s;
  }

  /// The gate asked for what is in this slot or on its way there. True if a prefetch brought it, and this is its first
  /// use.
  FERRY_HD bool use(std::uint32_t s) noexcept {
    const bool first = slots_[s].unused_prefetch;
    slots_[s].unused_prefetch = false;
    return first;
  }

  /// A task may read it from now on.
  FERRY_HD void lease(std::uint32_t s) noexcept { bars_[s] |= leased; }
  /// A stream slot is filled by the copy `ticket`, and leased.
  FERRY_HD void stream(std::uint32_t s, Ticket ticket) noexcept {
    assert(s >= cache_slots_);
    lease(s);
    slots_[s].ticket = ticket;
  }
  /// No task reads it behind `reader`.
  FERRY_HD void end_lease(std::uint32_t s, Fence reader) noexcept {
    bars_[s] = static_cast<std::uint8_t>(bars_[s] & ~leased);
    slots_[s].last_reader = reader;
  }
  /// Ends the lease of a slot that nobody has read.
  FERRY_HD void cancel_lease(std::uint32_t s) noexcept { end_lease(s, slots_[s].last_reader); }

  /// A stream slot gives up what was prefetched into it. A copy that has begun still lands; what follows lands after it.
  FERRY_HD void unstage(std::uint32_t s) noexcept {
    Slot& slot = slots_[s];
    assert(is_staged(s));
    if (slot.state != State::resident) take_back(s);
    unmap(slot);
    slot.state = State::absent;
    bars_[s] = 0;
  }

  /// Keeps prefetches from evicting `s` until `layer` is planned.
  FERRY_HD FERRY_HOT void mask(std::uint32_t s, std::uint16_t layer) noexcept {
    if ((bars_[s] & masked) == 0) masks_[mask_count_++] = s;
    bars_[s] |= masked;
    slots_[s].masked_for = layer;
  }
  /// Ends the masks of a layer. O(masks).
  FERRY_HD void unmask(std::uint16_t layer) noexcept {
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < mask_count_; ++i) {
      const std::uint32_t s = masks_[i];
      if (slots_[s].masked_for == layer) {
        bars_[s] = static_cast<std::uint8_t>(bars_[s] & ~masked);
      } else {
        masks_[kept++] = s;
      }
    }
    mask_count_ = kept;
  }

  /// Brings the states up to what the link has done. O(copies that landed since).
  FERRY_HD void advance(const Seen& seen) noexcept {
    while (!demand_.empty() && slots_[demand_[0]].ticket <= seen.demand_landed) {
      land(demand_[0]);
      demand_.pop();
    }
    while (!prefetch_.empty() && slots_[prefetch_[0]].ticket <= seen.prefetch_landed) {
      land(prefetch_[0]);
      prefetch_.pop();
    }
    for (std::uint32_t i = 0; i < prefetch_.size() && slots_[prefetch_[i]].ticket <= seen.prefetch_begun; ++i) {
      slots_[prefetch_[i]].state = State::in_flight;
      set_moving(prefetch_[i], in_flight);
    }
  }

  /// Calls `f(slot)` for every queued prefetch of a layer; `f` may release or expedite that slot. O(queue).
  template <class F>
  FERRY_HD void for_each_queued(std::uint16_t layer, F&& f) noexcept {
    for (std::uint32_t i = 0; i < prefetch_.size();) {
      const std::uint32_t s = prefetch_[i];
      const std::uint32_t before = prefetch_.size();
      if (slots_[s].state == State::queued && slots_[s].what.id.layer == layer) f(s);
      if (prefetch_.size() == before) ++i;
    }
  }

 private:
  struct PoolState {
    std::uint32_t first = 0, slots = 0, free = 0;
  };

  FERRY_HD FERRY_HOT std::size_t index(ExpertId id, std::uint32_t column) const noexcept {
    return (std::size_t{id.layer} * experts_ + id.expert) * columns_ + column;
  }
  FERRY_HD void unmap(const Slot& slot) noexcept {
    slot_of_[index(slot.what.id, column_[static_cast<unsigned>(slot.what.precision)])] = no_slot;
    if (columns_ == 1 || find({slot.what.id, Precision::skip}) == no_slot)
      held_.remove(slot.what.id.layer, slot.what.id.expert);
  }
  FERRY_HD void set_moving(std::uint32_t s, unsigned bar) noexcept {
    bars_[s] = static_cast<std::uint8_t>((bars_[s] & (leased | masked)) | bar);
  }
  FERRY_HD void land(std::uint32_t s) noexcept {
    slots_[s].state = State::resident;
    set_moving(s, 0);
  }
  FERRY_HD void fill(std::uint32_t s, Ticket ticket, bool demand, Phase phase) noexcept {
    Slot& slot = slots_[s];
    slot.ticket = ticket;
    slot.unused_prefetch = !demand;
    slot.submitted_in = phase;
    slot.state = demand ? State::in_flight : State::queued;  // a demand copy is never taken back
    set_moving(s, demand ? in_flight : queued);
    (demand ? demand_ : prefetch_).push(s);
  }
  FERRY_HD void drop_mask(std::uint32_t s) noexcept {
    std::uint32_t at = 0;
    while (masks_[at] != s) ++at;
    masks_[at] = masks_[--mask_count_];
  }
  FERRY_HD void take_back(std::uint32_t s) noexcept {
    CopyQueue<std::uint32_t>& queue = is_prefetch(slots_[s].ticket) ? prefetch_ : demand_;
    for (std::uint32_t i = 0; i < queue.size(); ++i) {
      if (queue[i] == s) return queue.erase(i);
    }
  }

  Array<Slot> slots_;
  Array<std::uint8_t> bars_;       ///< [slots] of Bar, apart from Slot because policies read them
  Array<std::uint32_t> slot_of_;   ///< [layers, experts, stored precisions]
  Array<std::uint16_t> pool_of_;   ///< [layers, stored precisions]
  Array<std::uint16_t> pools_of_;  ///< likewise, each pool of a layer once, behind them no_pool
  Array<PoolState> pools_;
  Array<std::uint32_t> free_;          ///< a stack a pool, at the pool's own slots
  CopyQueue<std::uint32_t> demand_;    ///< slots with a demand copy on its way, in ticket order
  CopyQueue<std::uint32_t> prefetch_;  ///< likewise prefetches
  Array<std::uint32_t> masks_;
  detail::ExpertSets held_;  ///< by layer, those that have a slot
  std::uint32_t mask_count_ = 0, columns_ = 0, experts_ = 0, cache_slots_ = 0, stream_slots_ = 0;
  std::uint32_t column_[precision_count] = {};
  Precision precision_of_[precision_count] = {};
  std::uint8_t stored_ = 0;
};

}  // namespace ferry::inline FERRY_ABI
