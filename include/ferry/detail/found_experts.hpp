/// @file
/// What a layer asks for, by where it is.
#pragma once
#include "ferry/detail/cached_slots.hpp"
#include "ferry/detail/measured_costs.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The requests of a layer in three lists. O(requests). State: 72 bytes an expert.
template <class Stack>
class FoundExperts {
  static constexpr bool predicts = part::predicts<typename Stack::predictor>();
  static constexpr bool weighs = part::WeighsLayers<typename Stack::scheduler>;

 public:
  void reserve(Carver& carve, std::uint32_t experts) { carve(absent_, experts); }

  /// How many are resident in slots of the cache: those in front of the requests.
  FERRY_HD std::uint32_t present() const noexcept { return present_; }
  /// What is to be loaded or computed on the host; what is on its way here.
  FERRY_HD View<Request> misses() noexcept { return {absent_.data(), misses_}; }
  FERRY_HD View<Request> arriving() noexcept { return {absent_.data() + absent_.size() - arriving_, arriving_}; }
  /// Some are in stream slots, where a prefetch put them.
  FERRY_HD bool any_staged() const noexcept { return any_staged_; }

  /// Leases and touches what is there or on its way, before any miss can evict it. Where a placement may still leave to the
  /// host what is on its way, that is touched once it is decided. What is there moves to the front of `requests`.
  /// `skip(request)` is called for those that are nowhere and not wanted.
  template <class Skip>
  FERRY_HD void find(Phase phase, View<Request> requests, const MeasuredCosts& costs, CachedSlots<Stack>& slots,
                     const Skip& skip) noexcept {
    present_ = misses_ = arriving_ = 0;
    any_staged_ = false;
    for (Request& r : requests) {
      slots.find_wanted(r);
      if (r.state == State::queued && slots.residency().slot(r.slot).what != r.want) {
        r.slot = no_slot;  // another precision than is wanted, and its copy has not begun: it is taken back
        r.state = State::absent;
      }
      const bool there = r.state == State::resident || r.state == State::in_flight;
      if (!there && r.want.precision == Precision::skip) {
        skip(r);
        continue;
      }
      if (r.slot != no_slot) slots.lease(r.slot);
      if (!there) {
        absent_[misses_] = r;
        if (weighs) absent_[misses_].gain_ns = slots.gain(r);
        costs.set(phase, absent_[misses_++]);
        continue;
      }
      if (r.state == State::in_flight) {
        if constexpr (!weighs) slots.use(r.slot);
        Request& last = absent_[absent_.size() - ++arriving_];
        last = r;
        if constexpr (weighs) costs.set(phase, last);
        continue;
      }
      slots.use(r.slot);
      if (predicts && slots.residency().is_stream(r.slot)) {
        any_staged_ = true;
        continue;
      }
      if constexpr (weighs) costs.set(phase, r);
      if (&requests[present_] != &r) {
        const Request other = requests[present_];
        requests[present_] = r;
        r = other;
      }
      ++present_;
    }
  }

  /// Tells the caches what the place of each of these experts saves, or would have saved. `rows`: of the layer.
  template <class Scheduler>
  FERRY_HD void count_savings(Phase phase, View<const Request> requests, std::uint32_t rows, const Scheduler& scheduler,
                              const MeasuredCosts& measured, const LayerCosts& costs,
                              CachedSlots<Stack>& slots) noexcept {
    if constexpr (part::CountsSavings<typename Stack::cache>) {
      const View<const Request> resident{requests.data, present_};
      Savings each{1, 1};
      if constexpr (part::Saves<Scheduler>) {
        each = scheduler.saves(phase, resident, misses(), arriving(), costs);
      } else {
        Request any = requests[0];
        measured.set(phase, any);
        if (any.copy_ns > 0) each = {any.copy_ns, any.copy_ns};
      }
      slots.saved(resident, rows, each.there);
      slots.saved(misses(), rows, each.absent);
      slots.saved(arriving(), rows, each.absent);
      for (std::uint32_t i = present_; any_staged_ && i < requests.size; ++i) {
        const Request& r = requests[i];
        if (r.state != State::resident || r.slot == no_slot || !slots.residency().is_stream(r.slot)) continue;
        slots.saved({&r, 1}, rows, each.absent);
      }
    }
  }

 private:
  Array<Request> absent_;  ///< [experts], misses in front, what is on its way behind
  std::uint32_t present_ = 0, misses_ = 0, arriving_ = 0;
  bool any_staged_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
