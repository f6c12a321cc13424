/// @file
/// What one core counts: outcomes, bytes, prefetches, and how good predictions were.
#pragma once
#include "ferry/allotment.hpp"
#include "ferry/detail/prediction_record.hpp"
#include "ferry/detail/top_scores.hpp"
#include "ferry/metrics.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The counters, with what has to be remembered between calls to keep them. It decides nothing.
template <class Stack>
class Accounts {
  using Router = typename Stack::router;
  static constexpr bool substitutes = part::substitutes<Router>(), skips = part::skips<Router>(),
                        revises = substitutes || skips;
  static constexpr bool predicts = part::predicts<typename Stack::predictor>();

 public:
  void reserve(Carver& carve, const ModelShape& model, std::uint16_t depth, float top_score_alpha) {
    experts_ = model.experts;
    carve(bytes_, std::size_t{model.layers} * precision_count);
    top_scores_.reserve(carve, model, top_score_alpha);
    carve(asked_, revises ? model.experts : 0);
    carve(best_, substitutes && predicts ? model.max_rows : 0);
    if constexpr (predicts) predictions_.reserve(carve, model, depth);
    if (carve.measuring()) return;
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      for (std::uint32_t p = 0; p < precision_count; ++p) {
        bytes_[l * precision_count + p] = model.bytes(l, static_cast<Precision>(p));
      }
    }
  }

  FERRY_HD const Counters& counters() const noexcept { return counters_; }
  FERRY_HD std::uint64_t bytes_of(Variant v) const noexcept {
    return bytes_[v.id.layer * precision_count + static_cast<unsigned>(v.precision)];
  }
  FERRY_HD Accuracy accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept {
    if constexpr (predicts) return predictions_.accuracy(distance, layer);
    return {};
  }

  FERRY_HD void begin_step(Phase phase, std::uint32_t rows) noexcept {
    phase_ = phase;
    step_rows_ = rows;
    ++counters_.steps[static_cast<unsigned>(phase)];
  }

  /// The gate's own scores of a layer, ahead of `ask`; without them misses are not counted by score.
  FERRY_HD void see(const Scores& scores) noexcept {
    if constexpr (substitutes && predicts) {
      for (std::uint32_t row = 0; row * experts_ < scores.select.size; ++row) {
        Route best;
        best_of(scores.select.data + std::size_t{row} * experts_, scores.experts_or(experts_), 1, &best);
        best_[row] = best.expert;
      }
    }
    top_scores_.mark(scores);
    by_score_ = top_scores_.on();
  }
  FERRY_HD void see_no_scores() noexcept { by_score_ = false; }

  /// What the gate asks for. Substitutes that it did not ask for are run and not counted.
  FERRY_HD void ask(View<const Route> routes, View<const Request> requests) noexcept {
    looked_ahead_ = false;
    Outcomes& count = counters_.of(phase_);
    if constexpr (revises) {
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
      (skips ? count.skipped : count.substituted) += asked - run;
    } else {
      count.requests += requests.size;
      for (std::uint32_t i = 0; by_score_ && i < requests.size; ++i) {
        ++(top_scores_[requests[i].want.id.expert] ? count.top_requests : count.low_requests);
      }
    }
  }
  /// How good the predictions of a layer were.
  FERRY_HD void score(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows) noexcept {
    if constexpr (predicts) predictions_.score(layer, routes, rows, step_rows_, best_, counters_.prefetch);
  }
  /// False for a substitute that the gate did not ask for.
  FERRY_HD bool asked(std::uint16_t expert) const noexcept {
    if constexpr (revises) return asked_[expert] != 0;
    return true;
  }

  FERRY_HD void hit(const Request& r) noexcept { count(r, &Outcomes::hits); }
  FERRY_HD void late_hit(const Request& r) noexcept {
    if (by_score_) count(r, top_scores_[r.want.id.expert] ? &Outcomes::top_late_hits : &Outcomes::low_late_hits);
    count(r, &Outcomes::late_hits);
  }
  FERRY_HD void skip(const Request& r) noexcept { count(r, &Outcomes::skipped); }
  FERRY_HD void miss(const Request& r) noexcept {
    if (count_absent(r, &Outcomes::misses)) counters_.of(phase_).miss_bytes += bytes_of(r.want);
  }
  /// It is on the device, and the host computes it all the same.
  FERRY_HD void hosted(const Request& r) noexcept { count(r, &Outcomes::host_computed); }
  FERRY_HD void host(const Request& r) noexcept { count_absent(r, &Outcomes::host_computed); }

  FERRY_HD void predicted(const Scores& scores, std::uint16_t distance, View<const Request> requests) noexcept {
    looked_ahead_ = true;
    if constexpr (predicts) predictions_.note(scores, distance, requests);
  }
  /// A layer is over. `wanted`: a look-ahead from it would have been of use.
  FERRY_HD void finish(bool wanted) noexcept {
    if (wanted && !looked_ahead_) ++counters_.prefetch.layers_not_asked;
  }
  /// The step was given up: what was predicted for it does not count.
  FERRY_HD void abandon() noexcept {
    if constexpr (predicts) predictions_.clear();
  }
  FERRY_HD void leave_unfinished() noexcept { ++counters_.unfinished_steps; }

  FERRY_HD void submitted(Variant what, bool demand) noexcept {
    const std::uint64_t bytes = bytes_of(what);
    counters_.of(phase_).bytes += bytes;
    counters_.bytes_by_precision[static_cast<unsigned>(what.precision)] += bytes;
    if (demand) return;
    ++counters_.prefetch.issued;
    counters_.prefetch.issued_bytes += bytes;
  }
  /// A prefetch that nobody predicted.
  FERRY_HD void promoted() noexcept { ++counters_.prefetch.promoted; }
  /// A copy submitted ahead of the first step is of neither phase.
  FERRY_HD void preloaded(Variant what) noexcept {
    counters_.of(phase_).bytes -= bytes_of(what);
    counters_.preload_bytes += bytes_of(what);
  }
  /// A queued prefetch, submitted in that phase, was taken back.
  FERRY_HD void dropped(Variant what, Phase submitted_in) noexcept {
    const std::uint64_t bytes = bytes_of(what);
    counters_.of(submitted_in).bytes -= bytes;
    counters_.bytes_by_precision[static_cast<unsigned>(what.precision)] -= bytes;
    counters_.prefetch.issued_bytes -= bytes;
    --counters_.prefetch.issued;
    ++counters_.prefetch.dropped;
  }
  FERRY_HD void used_prefetch(Variant what) noexcept {
    ++counters_.prefetch.used;
    ++counters_.of(phase_).prefetched;
    counters_.of(phase_).prefetched_bytes += bytes_of(what);
  }
  FERRY_HD void wasted_prefetch(Variant what) noexcept { counters_.prefetch.wasted_bytes += bytes_of(what); }

 private:
  FERRY_HD bool count(const Request& r, std::uint64_t Outcomes::*outcome) noexcept {
    if (!asked(r.want.id.expert)) return false;
    ++(counters_.of(phase_).*outcome);
    return true;
  }
  /// It is not on the device and no copy has begun: it has to be loaded, or computed on the host.
  FERRY_HD bool count_absent(const Request& r, std::uint64_t Outcomes::*outcome) noexcept {
    if (by_score_) count(r, top_scores_[r.want.id.expert] ? &Outcomes::top_misses : &Outcomes::low_misses);
    return count(r, outcome);
  }

  Counters counters_;
  Array<std::uint64_t> bytes_;  ///< [layers, precision_count]
  Array<std::uint8_t> asked_;   ///< [experts], whether the gate chose it, for routers that substitute or skip
  Array<std::uint16_t> best_;   ///< [rows], the gate's first choice, for predictors beside routers that substitute
  TopScores top_scores_;
  PredictionRecord predictions_;
  std::uint32_t step_rows_ = 0, experts_ = 0;
  Phase phase_ = Phase::decode;
  bool by_score_ = false;      ///< `top_scores_` is of this layer
  bool looked_ahead_ = false;  ///< since the layer's plan
};

}  // namespace ferry::inline FERRY_ABI::detail
