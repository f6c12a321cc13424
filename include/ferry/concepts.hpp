/// @file
/// The contracts: five policy concepts and Link. Each is built from named parts, one an operation, so that a
/// compiler names the part that is missing. Requirements that no compiler can check are numbered.
///
/// Common to all policies:
///  1. Trivially copyable; arrays only as ferry::Array, carved in `reserve`. `reserve` runs twice, first to
///     measure (Carver::measuring), and is the only call that may throw or be slow.
///  2. Every other call is noexcept, allocates nothing, reads no clock, and depends on nothing but its
///     arguments and its own state: the same calls give the same answers on every machine.
///  3. Ties go to the lower index, of experts or of slots, whichever is asked for; NaN sorts last.
///  4. Calls come from one thread at a time.
///  5. What is not marked FERRY_HD runs on the host alone.
///  6. Optional: `check()`, const, noexcept, host only. It returns a text that names the first of the policy's invariants
///     that does not hold, or nullptr. It may be slow: tests call it after every step, the library never does.
#pragma once
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "ferry/model.hpp"
#include "ferry/storage.hpp"

namespace ferry::inline FERRY_ABI {

/// What one CachePolicy instance looks after: `slots` equal slots for the experts of some adjacent layers.
struct PoolShape {
  std::uint32_t slots = 0;  ///< how many
  /// Which layers, from `first_layer` on, and the experts of each.
  std::uint16_t first_layer = 0, layers = 0, experts = 0;
};

/// Slots of a pool that must not be evicted now, by pool-local index.
struct Barred {
  const std::uint8_t* flags = nullptr;  ///< [slots]
  std::uint8_t bars = 0;                ///< which flags count
  /// Whether this slot must stay.
  FERRY_HD bool operator[](std::uint32_t slot) const noexcept { return (flags[slot] & bars) != 0; }
};

namespace part {
template <class T>
concept State =
    std::is_trivially_copyable_v<T> && std::is_copy_constructible_v<T> && std::is_default_constructible_v<T>;

template <class T>
concept Checks = requires(const T t) {
  { t.check() }
  noexcept->std::same_as<const char*>;
};

template <class T>
concept ReservesForModel = requires(T t, Carver& carve, const Shape& shape) {
  t.reserve(carve, shape);
};
template <class T>
concept ReservesForPool = requires(T t, Carver& carve, const PoolShape& pool) {
  t.reserve(carve, pool);
};

template <class R>
concept Routes = requires(R r, Phase phase, const Scores& scores, View<const ferry::State> present, Out<Route>& out) {
  { r.route(phase, scores, present, out) }
  noexcept;
};
/// The list must be taken by reference: what is written to a copy of it is lost.
template <class R>
concept RoutesByReference = !requires(R r, Phase phase, const Scores& scores, View<const ferry::State> present) {
  r.route(phase, scores, present, Out<Route>{});
};
template <class P>
concept Observes = requires(P p, std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) {
  { p.observe(layer, taken, rows) }
  noexcept;
};
template <class P>
concept Predicts = requires(P p, Phase phase, const Scores& scores, Out<Request>& out) {
  { p.predict(phase, scores, out) }
  noexcept;
};
template <class P>
concept PredictsByReference = !requires(P p, Phase phase, const Scores& scores) {
  p.predict(phase, scores, Out<Request>{});
};
template <class Q>
concept SelectsPrecision = requires(Q q, Phase phase, bool demand, View<Request> requests) {
  { q.select(phase, demand, requests) }
  noexcept;
};
template <class Q>
concept NamesPrecisions = requires(const Q q) {
  { q.precisions() }
  noexcept->std::same_as<std::uint8_t>;
};
template <class C>
concept Touches = requires(C c, Variant what, std::uint32_t slot) {
  { c.touch(what, slot) }
  noexcept;
};
template <class C>
concept ChoosesVictim = requires(C c, Variant incoming, Barred barred) {
  { c.victim(incoming, barred) }
  noexcept->std::same_as<std::uint32_t>;
};
template <class C>
concept Replaces = requires(C c, std::uint32_t slot, Variant what, bool demand) {
  { c.replace(slot, what, demand) }
  noexcept;
};
template <class L>
concept Submits = requires(L& l, const Copy& copy) {
  { l.submit(copy) }
  noexcept;
};
template <class L>
concept Drops = requires(L& l, Ticket ticket) {
  { l.drop(ticket) }
  noexcept;
};
template <class L>
concept ReportsProgress = requires(L& l) {
  { l.seen() }
  noexcept->std::same_as<Seen>;
};
template <class L>
concept Fences = requires(L& l, Fence fence) {
  { l.fence(fence) }
  noexcept;
};
template <class L>
concept Waits = requires(L& l, Ticket ticket) {
  l.wait(ticket);
};
}  // namespace part

/// Turns gate scores into routes: which k experts each row uses, and how their outputs are weighed.
///
/// `route(phase, scores, present, out)` appends exactly k routes a row, best first, rows in order.
///  1. `scores.select` and `scores.weight` are [rows, experts], row-major.
///  2. A row's experts are distinct. Weights are final (normalised if the model does that).
///  3. `present` is [experts], the state of each expert of this layer at the best precision there is; in flight
///     counts as resident. It is empty unless the router declares `static constexpr bool needs_residency = true`.
///  4. A router that may choose other experts than the gate's top k declares `static constexpr bool substitutes =
///     true`, and names in `Route::instead_of` the gate's choice that each substitute stands for, each once a row.
///  5. One that may leave out some of the gate's choices declares `static constexpr bool skips = true`, and makes those
///     routes of `no_expert` at weight 0, with the gate's choice in `Route::instead_of`.
///
/// Optional: `revise(phase, routes)` changes routes that an engine's own top-k has made, as `route` would. A router that
/// cannot do without the scores of all experts declares `static constexpr bool needs_full_scores = true`.
///
/// Complexity: O(rows * experts * k) at worst.
///
/// Minimal model: ferry::TopK. @see ferry::ExpertCacheRouter, ferry::ExpertSkipping
template <class R>
concept ExpertRouter = part::State<R> && part::ReservesForModel<R> && part::Routes<R> && part::RoutesByReference<R>;

/// Predicts which experts a later layer needs.
///
/// `predict(phase, scores, out)` appends one Request an expert that it expects, surest first.
///  1. `scores.layer` is the layer predicted; rows are whatever made them: a gate bank, a kernel, a trace.
///  2. Of a Request it sets want.id, rows, importance, unimportance and confidence; the core fills in the rest.
///  3. No expert twice. `out` has room for E requests; those that do not fit are dropped.
///  4. It declares which rows it reads as `static constexpr RowSource prefill_rows`, `decode_rows`; without a declaration,
///     `gate_input`. With `none`, `scores.select` is empty.
///
/// `observe(layer, taken, rows)` sees every layer's routes [rows, k], in order. It is called after the layer's plan, which
///     does not wait for it, and before the next `predict`. A route that was skipped or left out still names the gate's
///     choice, at weight 0. `rows`: which rows of the step they are, ascending; empty: all of them.
///  5. A predictor never sees residency: the same routing gives the same prediction whatever the cache does.
///
/// One that predicts nothing declares `static constexpr bool predicts = false`: `predict` is never called.
///
/// Optional: `begin_step(step)`, `end_sequence(sequence)`, noexcept; a member `depth`, how many layers ahead it wants to be
/// asked for (1 without it).
///
/// Minimal model: ferry::NoPrediction.
template <class P>
concept Predictor = part::State<P> && part::ReservesForModel<P> && part::Observes<P> && part::Predicts<P> &&
    part::PredictsByReference<P>;

/// Chooses the precision of each request, or to skip it.
///
/// `select(phase, demand, requests)` sets the precision of `Request::want`, for real (`demand`) and for predicted requests.
///  1. `state` and `held` say where the expert's best variant is, and at which precision. A variant that is at least as
///     precise as the one wanted is used as it is; a request for `skip` is skipped only if no variant is resident
///     or in flight.
///  2. `precisions()` has bit `1 << p` for every Precision p that it may set; a store that lacks one is refused
///     at construction.
///  3. One that reads Request::unimportance declares `static constexpr bool needs_unimportance = true`.
///
/// Optional: `reserve(carve, shape)` if it keeps state.
///
/// Complexity: O(requests). Minimal model: ferry::FixedPrecision.
template <class Q>
concept QuantSelector = part::State<Q> && part::SelectsPrecision<Q> && part::NamesPrecisions<Q>;

/// Orders the slots of one pool by worth. All slot numbers are local to the pool.
///
/// `touch(what, slot)`: the real gate asks for `what`, which sits in `slot`; called once an expert and step. `no_slot`:
///     it is absent or in a stream slot, whether it is then loaded or computed on the host; or it is on its way, and the host
///     computes it. A skipped expert is not touched: nobody used it.
///
/// `victim(incoming, barred)`: which slot `incoming` should take; `no_slot` refuses it, or all are barred.
///  1. Never a barred slot.
///  2. Its answer may go unused, so what records uses and places changes in `touch` and `replace` alone.
///
/// `replace(slot, what, demand)`: `what` takes `slot` from now on, whoever was there. `demand`: for the real gate,
///     otherwise a prefetch, which inserts but is no access.
///  3. Also called for slots that were free, which the core hands out in its own order.
///
/// Within one layer of a step the core touches what is there first, then for each miss: touch(absent), victim,
/// replace. None of a step's experts evicts another.
///
/// Optional, noexcept:
///  - `forget(slot)`: the copy into it was taken back, it is free again.
///  - `begin_step(step)`: a forward pass begins.
///  - `observe(scores)`: the real gate's scores [rows, experts] of one of the pool's layers, before its routes are
///    chosen. A policy that cannot do without declares `static constexpr bool needs_full_scores = true`.
///  - `chosen(layer, taken, rows)`: the routes [rows, k] of one of the pool's layers, before any is skipped; `rows` as for
///    Predictor::observe. Called once a layer, before all that follows from them.
///  - `used(what)`: the gate asked for an expert of the pool's layers, and this variant serves it, from whichever pool
///    or the host. Called before `touch`, once an expert and step, also for pools of other precisions.
///  - `reset()`: the last live sequence has ended, and a step of others begins. What is kept by sequence begins anew. At
///    most `Shape::max_rows` live sequences are noticed; any beyond that may still go on.
///  - `saved(uses, rows, each)`: the gate asked for these experts (at least one) of a layer that has `rows` rows in this step.
///    Each saved that much by being where it is, or would have saved that in a slot. Called before `victim`, once for those
///    that are there (after their `touch`), once for the misses (before theirs) and once for those on their way; in prefill
///    with a predictor also for each expert that waits in a stream slot.
///  - `loaded(layer, loads, misses)`: so many of the layer's misses are loaded, and the host computes the others.
///    Called once a layer, after `saved`.
///  - `finished(layer)`: a layer is over. For work that no plan has to wait for: it may run while the device computes.
///  - `goes_on(before)`: called for the next pool after `finished`, to take over what the policy of this pool has learned.
///  - `gain(miss)`, const: how much more a place is expected to save with this expert, which is asked for and not there, than
///    with the expert that would leave. Called before `saved`, if the placement weighs layers.
///  - `each_gains()`, const: whether each of a layer's misses gains that, or only the first.
///  - `wanted()`: the expert of the pool's layers that has no slot there and most deserves one; `expert` is `no_expert` if
///    there is none. It may change only state that makes it faster. It needs, const: `more_saved(id, slot)`, how much more that
///    expert is expected to save in the slot than the expert that is there (`no_slot`: nobody is).
///
/// One that keeps nothing declares `static constexpr bool caches = false`: its allotment has stream slots alone.
///
/// Complexity: O(1) amortised, or O(slots) for `victim`. Minimal model: ferry::LoadOnDemand.
template <class C>
concept CachePolicy =
    part::State<C> && part::ReservesForPool<C> && part::Touches<C> && part::ChoosesVictim<C> && part::Replaces<C>;

/// How many predicted requests to fetch.
///
/// `further(window)`: whether a prediction for a layer `window.distance` ahead is of use at all, after what was taken
///     since the plan; if not, nothing of it is fetched or masked.
///
/// `take(window, absent)`: how many of these requests, from the front.
///  1. `absent` are those that would have to be copied, in the predictor's order.
template <class L>
concept PrefetchLimit = part::State<L> &&
    requires(const L l, const PrefetchWindow& window, View<const Request> absent) {
  { l.further(window) }
  noexcept->std::same_as<bool>;
  { l.take(window, absent) }
  noexcept->std::same_as<std::uint32_t>;
};

/// In which order copies are submitted and run: `order(phase, demand, requests)` permutes them in place.
///  1. Demand requests (`demand`) come in ascending expert index, predictions surest first.
///
/// One that sorts the demand requests of a decode step by descending rows declares `static constexpr bool
/// orders_batches = true`.
template <class O>
concept CopyOrder = part::State<O> && requires(const O o, Phase phase, bool demand, View<Request> requests) {
  { o.order(phase, demand, requests) }
  noexcept;
};

/// Which misses the host computes: `split(phase, misses)` returns how many from the front are loaded; the
/// rest runs on the host. One that needs the misses with rows descending declares `static constexpr bool
/// needs_ordered_batches = true`; one that loads all of them declares `static constexpr bool computes_on_host = false`, so
/// that an engine need not prepare its host.
///
/// Optional, noexcept:
///  - `split(phase, resident, misses, arriving, costs)` returns a Split and is called instead. It also sees the layer's experts
///    that are there (`resident`) and those on their way (`arriving`).
///  - `saves(phase, resident, misses, arriving, costs)` returns the Savings that a cache policy's `saved` is told. Without it,
///    `saved` is told what a copy takes.
///  - `promotes(request, more_saved, costs)` is called after each plan of a decode step, while no prefetch waits or moves. It
///    returns whether to copy the expert that the cache policy wants most; `more_saved` is how much more that one is expected
///    to save than the expert whose place it would take. A cache policy without `wanted` promotes nothing.
template <class P>
concept Placement = part::State<P> && requires(const P p, Phase phase, View<const Request> misses) {
  { p.split(phase, misses) }
  noexcept->std::same_as<std::uint32_t>;
};

/// The three of them together. @see ferry::Schedule
template <class S>
concept Scheduler = PrefetchLimit<S> && CopyOrder<S> && Placement<S>;

/// Carries copies into slots, behind the decisions. Written by an engine for its own memory, or one of ours.
///
/// `submit(copy)` takes a copy over; `drop(ticket)` takes back a prefetch that has not begun (best effort), or what is left
/// of one; `seen()` tells how far the link has got; `fence(f)` names the present end of the device's work; `wait(ticket)`
/// makes the device's next work (or the caller) wait until that demand copy or prefetch has landed.
///  1. Demand copies begin in the order of their tickets, and before every prefetch not begun. So do prefetches
///     among themselves. A demand copy that has begun is not interrupted. A prefetch may be: demand copies may go ahead of
///     what is left of it, until it is waited for, and it goes on before any other prefetch begins.
///  2. Writes to one slot land in the order of submission, also after a drop that came too late.
///  3. Not one byte of `copy.slot` is written before `copy.after` was reached.
///  4. After `seen()` reports a ticket as landed, or `wait` returns, the slot's bytes are visible to the device.
///  5. `seen()` never goes back. A dropped prefetch counts as begun and landed, a copy that failed never as landed.
///  6. `wait` throws when the copy can never land: it was not submitted, or the link has failed.
///
/// Threads: called from the engine's thread; what runs behind it is the link's own business.
template <class L>
concept Link = part::Submits<L> && part::Drops<L> && part::ReportsProgress<L> && part::Fences<L> && part::Waits<L>;

/// One composition of policies: what `Core` and `OffloadPipeline` are made of.
///
/// A type that derives from it is a stack with a name, and may have what the name stands for beyond the policies:
///  - `set_up(Config&, Budget)`, static: sets the policies' parameters and `CoreSettings::allotment` for
///    `CoreSettings::model`. Throws ConfigError for a budget that cannot work. What users may set of the slots is a third
///    argument, of the type that the stack calls `Layout`.
///  - `static constexpr bool preloads = true`: its slots are to be filled before the first step (`StackTraits::preloads`).
template <Predictor P, CachePolicy C, QuantSelector Q, Scheduler S, ExpertRouter R>
struct Stack {
  using predictor = P;  ///< which experts later layers need
  using cache = C;      ///< who leaves a full pool
  using precision = Q;  ///< how many bits cross
  using scheduler = S;  ///< what moves or runs when, and where
  using router = R;     ///< which experts each row uses
};

}  // namespace ferry::inline FERRY_ABI

// Whoever asks whether a policy models a concept also asks what it has beyond it.
#include "ferry/detail/hooks.hpp"
