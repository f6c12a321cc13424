/// @file
/// What a policy says of itself beyond its concept: optional operations and declarations.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

namespace part {
template <class P>
consteval bool predicts() {
  if constexpr (requires { P::predicts; }) return P::predicts;
  return true;
}
template <class P>
FERRY_HD constexpr RowSource rows_of(Phase phase) {
  if constexpr (requires { P::prefill_rows; }) {
    if (phase == Phase::prefill) return P::prefill_rows;
  }
  if constexpr (requires { P::decode_rows; }) {
    if (phase == Phase::decode) return P::decode_rows;
  }
  return RowSource::gate_input;
}
template <class P>
FERRY_HD constexpr std::uint16_t depth_of(const P& p) {
  if constexpr (requires { p.depth; }) return static_cast<std::uint16_t>(p.depth);
  return predicts<P>() ? 1 : 0;
}
template <class C>
consteval bool caches() {
  if constexpr (requires { C::caches; }) return C::caches;
  return true;
}
template <class R>
consteval bool needs_residency() {
  if constexpr (requires { R::needs_residency; }) return R::needs_residency;
  return false;
}
template <class R>
consteval bool substitutes() {
  if constexpr (requires { R::substitutes; }) return R::substitutes;
  return false;
}
template <class R>
consteval bool skips() {
  if constexpr (requires { R::skips; }) return R::skips;
  return false;
}
template <class P>
consteval bool needs_full_scores() {
  if constexpr (requires { P::needs_full_scores; }) return P::needs_full_scores;
  return false;
}
template <class P>
consteval bool computes_on_host() {
  if constexpr (requires { P::computes_on_host; }) return P::computes_on_host;
  return true;
}
template <class Q>
consteval bool needs_unimportance() {
  if constexpr (requires { Q::needs_unimportance; }) return Q::needs_unimportance;
  return false;
}

template <class R>
concept Revises = requires(R r, Phase phase, View<Route> routes) {
  { r.revise(phase, routes) }
  noexcept;
};
template <class S>
concept WeighsLayers = requires(const S s, Phase phase, View<const Request> requests, const LayerCosts& costs) {
  { s.split(phase, requests, requests, requests, costs) }
  noexcept->std::same_as<Split>;
};
template <class S>
concept Saves = requires(const S s, Phase phase, View<const Request> requests, const LayerCosts& costs) {
  { s.saves(phase, requests, requests, requests, costs) }
  noexcept->std::same_as<Savings>;
};
template <class S>
concept Promotes = requires(const S s, const Request& request, Nanoseconds more_saved, const LayerCosts& costs) {
  { s.promotes(request, more_saved, costs) }
  noexcept->std::same_as<bool>;
};
template <class C>
concept Gains = requires(const C c, const Request& miss) {
  { c.gain(miss) }
  noexcept->std::same_as<Nanoseconds>;
};
template <class C>
concept CountsSavings = requires(C c, View<const Request> uses, std::uint32_t rows, Nanoseconds each) {
  { c.saved(uses, rows, each) }
  noexcept;
};
template <class C>
concept SeesChoices = requires(C c, std::uint16_t layer, View<const Route> taken, View<const std::uint32_t> rows) {
  { c.chosen(layer, taken, rows) }
  noexcept;
};
template <class C>
concept SeesLoads = requires(C c, std::uint16_t layer, std::uint32_t loads, std::uint32_t misses) {
  { c.loaded(layer, loads, misses) }
  noexcept;
};
template <class C>
concept SeesLayersEnd = requires(C c, std::uint16_t layer) {
  { c.finished(layer) }
  noexcept;
};
template <class C>
concept SaysWhoGains = requires(const C c) {
  { c.each_gains() }
  noexcept->std::same_as<bool>;
};
template <class C>
concept GoesOn = requires(C c, const C& before) {
  { c.goes_on(before) }
  noexcept;
};
template <class C>
concept Wants = requires(C c, const C k, ExpertId id, std::uint32_t slot) {
  { c.wanted() }
  noexcept->std::same_as<ExpertId>;
  { k.more_saved(id, slot) }
  noexcept->std::same_as<Nanoseconds>;
};

/// It has a `split` that takes the arguments of WeighsLayers, whatever it returns: to tell a wrong signature from none.
template <class S>
concept SplitsSomehow = requires(S s, Phase phase, View<const Request> requests, const LayerCosts& costs) {
  s.split(phase, requests, requests, requests, costs);
};

template <class T>
concept BeginsStep = requires(T t, const Step& step) {
  { t.begin_step(step) }
  noexcept;
};
template <class T>
concept EndsSequence = requires(T t, std::uint32_t sequence) {
  { t.end_sequence(sequence) }
  noexcept;
};
template <class T>
concept Forgets = requires(T t, std::uint32_t slot) {
  { t.forget(slot) }
  noexcept;
};
template <class T>
concept ObservesScores = requires(T t, const Scores& scores) {
  { t.observe(scores) }
  noexcept;
};
template <class T>
concept SeesUse = requires(T t, Variant what) {
  { t.used(what) }
  noexcept;
};
template <class T>
concept Resets = requires(T t) {
  { t.reset() }
  noexcept;
};

/// An optional operation of the right name but the wrong signature would be passed over in silence: this refuses it,
/// unless the name is overloaded or a template.
template <class Stack>
consteval void check_hooks() {
  using P = typename Stack::predictor;
  using C = typename Stack::cache;
  using Q = typename Stack::precision;
  using S = typename Stack::scheduler;
  using R = typename Stack::router;
#define FERRY_CHECK_HOOK(T, name, Concept, signature) \
  static_assert(                                      \
      !requires { &T::name; } || Concept<T>, #name " must be callable as " signature)
  FERRY_CHECK_HOOK(P, begin_step, BeginsStep, "begin_step(const Step&) noexcept");
  FERRY_CHECK_HOOK(P, end_sequence, EndsSequence, "end_sequence(std::uint32_t) noexcept");
  FERRY_CHECK_HOOK(C, begin_step, BeginsStep, "begin_step(const Step&) noexcept");
  FERRY_CHECK_HOOK(C, forget, Forgets, "forget(std::uint32_t slot) noexcept");
  FERRY_CHECK_HOOK(C, observe, ObservesScores, "observe(const Scores&) noexcept");
  FERRY_CHECK_HOOK(C, used, SeesUse, "used(Variant) noexcept");
  FERRY_CHECK_HOOK(C, reset, Resets, "reset() noexcept");
  FERRY_CHECK_HOOK(C, saved, CountsSavings,
                   "saved(View<const Request>, std::uint32_t rows, Nanoseconds each) noexcept");
  FERRY_CHECK_HOOK(C, chosen, SeesChoices,
                   "chosen(std::uint16_t layer, View<const Route>, View<const std::uint32_t> rows) noexcept");
  FERRY_CHECK_HOOK(C, loaded, SeesLoads,
                   "loaded(std::uint16_t layer, std::uint32_t loads, std::uint32_t misses) noexcept");
  FERRY_CHECK_HOOK(C, gain, Gains, "Nanoseconds gain(const Request&) const noexcept");
  FERRY_CHECK_HOOK(C, finished, SeesLayersEnd, "finished(std::uint16_t layer) noexcept");
  FERRY_CHECK_HOOK(C, each_gains, SaysWhoGains, "bool each_gains() const noexcept");
  FERRY_CHECK_HOOK(C, goes_on, GoesOn, "goes_on(const Cache& before) noexcept");
  FERRY_CHECK_HOOK(
      C, wanted, Wants,
      "ExpertId wanted() noexcept, and beside it Nanoseconds more_saved(ExpertId, std::uint32_t slot) const "
      "noexcept");
  FERRY_CHECK_HOOK(
      S, saves, Saves,
      "Savings saves(Phase, View<const Request> resident, misses, arriving, const LayerCosts&) const noexcept");
  FERRY_CHECK_HOOK(S, promotes, Promotes,
                   "bool promotes(const Request&, Nanoseconds more_saved, const LayerCosts&) const noexcept");
  static_assert(!SplitsSomehow<S> || WeighsLayers<S>,
                "split with the costs of a layer must be const, noexcept, and give a Split");
  static_assert(
      !requires { &P::depth; } || requires(const P& p) { static_cast<std::uint16_t>(p.depth); },
      "depth must be a number, and no function: a member, or static constexpr");
  FERRY_CHECK_HOOK(Q, reserve, ReservesForModel, "reserve(Carver&, const Shape&)");
  FERRY_CHECK_HOOK(R, revise, Revises, "revise(Phase, View<Route>) noexcept");
  FERRY_CHECK_HOOK(P, check, Checks, "const char* check() const noexcept");
  FERRY_CHECK_HOOK(C, check, Checks, "const char* check() const noexcept");
  FERRY_CHECK_HOOK(Q, check, Checks, "const char* check() const noexcept");
  FERRY_CHECK_HOOK(S, check, Checks, "const char* check() const noexcept");
  FERRY_CHECK_HOOK(R, check, Checks, "const char* check() const noexcept");
#undef FERRY_CHECK_HOOK
  // What another kind of policy has, and nobody would call.
#define FERRY_NOT_CALLED(T, kind, name) \
  static_assert(                        \
      !requires { &T::name; }, "nobody calls " #name " of " kind ": concepts.hpp says what it is told instead")
  FERRY_NOT_CALLED(C, "a cache policy", end_sequence);
  FERRY_NOT_CALLED(P, "a predictor", reset);
  FERRY_NOT_CALLED(R, "a router", begin_step);
  FERRY_NOT_CALLED(R, "a router", end_sequence);
  FERRY_NOT_CALLED(R, "a router", observe);
  FERRY_NOT_CALLED(Q, "a precision selector", begin_step);
  FERRY_NOT_CALLED(Q, "a precision selector", end_sequence);
  FERRY_NOT_CALLED(Q, "a precision selector", observe);
  FERRY_NOT_CALLED(S, "a scheduler", reserve);
  FERRY_NOT_CALLED(S, "a scheduler", begin_step);
  FERRY_NOT_CALLED(S, "a scheduler", end_sequence);
#undef FERRY_NOT_CALLED
  // A function of that name would count as true.
#define FERRY_CHECK_FLAG(T, name)                                           \
  static_assert(                                                            \
      !requires { T::name; } ||                                             \
          requires {                                                        \
            requires std::same_as < std::remove_cvref_t<decltype(T::name)>, \
            bool > ;                                                        \
          },                                                                \
      #name " must be a static constexpr bool, and no function")
  FERRY_CHECK_FLAG(P, predicts);
  FERRY_CHECK_FLAG(C, caches);
  FERRY_CHECK_FLAG(C, needs_full_scores);
  FERRY_CHECK_FLAG(R, needs_full_scores);
  FERRY_CHECK_FLAG(R, needs_residency);
  FERRY_CHECK_FLAG(R, substitutes);
  FERRY_CHECK_FLAG(R, skips);
  FERRY_CHECK_FLAG(Q, needs_unimportance);
  FERRY_CHECK_FLAG(S, computes_on_host);
  FERRY_CHECK_FLAG(S, orders_batches);
  FERRY_CHECK_FLAG(S, needs_ordered_batches);
#undef FERRY_CHECK_FLAG
  static_assert(!substitutes<R>() || needs_residency<R>(),
                "a router that substitutes must know what is resident: declare needs_residency = true in it");
  static_assert(!(substitutes<R>() && skips<R>()),
                "what becomes of a choice is counted by the router: it substitutes or it skips");
}
}  // namespace part

}  // namespace ferry::inline FERRY_ABI
