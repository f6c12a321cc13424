/// @file
/// Leaves out the experts that matter least, within a loss that the user states.
#pragma once
#include <limits>
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"
#include "ferry/router/top_k.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode a row's least important experts are not run at all, wherever they are; the others keep the weights that the
/// gate gave them, and a row's best expert always runs. Prefill is plain top-k.
///
/// Leaving out an expert costs its squared weight, summed over the rows that chose it: the squared distance by which the
/// layer's output moves, if experts' outputs are of one size and have no common direction. The expert is left out for all of
/// these rows if its cost is at most a threshold, and otherwise for none, since one row more costs next to nothing. A row and
/// layer may spend `max_loss / loss_rate` in the mean. The threshold rises while less than this allowance is spent, and falls
/// while more is: by a factor of e in about 64 tokens if nothing is spent at all. Its logarithm is the sum of what was not
/// spent, and lies between ln(2^-24) and 0: so over any n tokens the mean exceeds the allowance by no more than about
/// 64 ln(2^24) / n of it, some 1,100 / n.
///
/// Nothing else matters, neither what is resident nor the machine nor the budget: a text that was measured with one of them is
/// what every other would have written. The threshold carries over from one sequence to the next, so that what a prompt gets
/// depends on what was decoded before it and beside it.
///
/// Source: ours. Lu et al. (2024, "Not All Experts are Equal", section 3.3) leave out the second of two experts if its
/// weight is below a share of the first's. HOBBIT (3.2) skips misses by what is ranked above them, Importance-driven (5.1)
/// replaces them; on the bundled models leaving out costs less than replacing at the same time saved, and the squared
/// weight predicts the divergence of both with nearly the same factor (docs/results/decisions-on-policies.md).
/// Complexity: O(rows * k) beside TopK's. State: 4 bytes an expert.
///
/// Ambiguities resolved. Costs are whole numbers of 2^-20, rounded down plus one. A row's best expert is the first that it has.
/// An expert whose weight is not a number is never left out. Equal experts of a row are left out together. A model with one
/// expert a token always runs it.
class ExpertSkipping {
 public:
  static constexpr bool skips = true;

  float max_loss = 1.0F;     ///< percent of the bits a token that may be lost, 0 to 100
  float loss_rate = 150.0F;  ///< percent lost where the mean cost is 1; above 0; found by `ferry calibrate skipping`

  void reserve(Carver& carve, const Shape& shape) {
    if (!(max_loss >= 0.0F && max_loss <= 100.0F)) {
      detail::fail<ConfigError>("ExpertSkipping: max_loss is " + std::to_string(max_loss) + ", expected 0 to 100");
    }
    if (!(loss_rate > 0.0F && loss_rate <= std::numeric_limits<float>::max())) {
      detail::fail<ConfigError>("ExpertSkipping: loss_rate is " + std::to_string(loss_rate) + ", expected more than 0");
    }
    gate_.reserve(carve, shape);
    carve(cost_, shape.experts);
    k_ = shape.top_k;
    pace_ = 64U * shape.layers;
    const float allowance = max_loss / loss_rate;
    allowance_ = static_cast<std::int64_t>((allowance < 1.0F ? allowance : 1.0F) * one);
    threshold_ = clamp(allowance_ << fraction_bits);
  }

  FERRY_HD void route(Phase phase, const Scores& scores, View<const State> present, Out<Route>& out) noexcept {
    const std::uint32_t before = out.size;
    gate_.route(phase, scores, present, out);
    revise(phase, {out.data + before, out.size - before});
  }

  /// The same for [rows, k] routes, best first, which an engine's own top-k has made.
  FERRY_HD void revise(Phase phase, View<Route> routes) noexcept {
    if (phase == Phase::prefill || allowance_ == 0) return;
    for (const Route& r : routes) {
      if (r.expert != no_expert) cost_[r.expert] = 0;
    }
    std::uint32_t rows = 0;
    for (std::uint32_t first = 0; first < routes.size; first += k_) {
      bool best = true;  // the first that the row has
      for (const Route& r : routes.part(first, k_)) {
        if (r.expert == no_expert) continue;
        cost_[r.expert] = add(cost_[r.expert], best ? never : cost(r.weight));
        rows += best ? 1 : 0;
        best = false;
      }
    }
    std::int64_t spent = 0;
    for (Route& r : routes) {
      if (r.expert == no_expert || (std::int64_t{cost_[r.expert]} << fraction_bits) > threshold_) continue;
      spent += cost(r.weight);
      r = {no_expert, 0.0F, r.expert};
    }
    if (rows > 0) adapt(allowance_ * rows, spent);
  }

  [[nodiscard]] const char* check() const noexcept {
    return threshold_ == clamp(threshold_) ? nullptr : "ExpertSkipping: the threshold is out of its bounds";
  }

 private:
  static constexpr unsigned cost_bits = 20, fraction_bits = 20;  ///< costs are in 2^-20, the threshold in 2^-40
  static constexpr float one = 1U << cost_bits;
  static constexpr std::uint32_t never = 0xffffffffU;  ///< more than any threshold

  FERRY_HD static std::uint32_t cost(float weight) noexcept {
    const float squared = weight * weight * one;
    return squared < 2147483648.0F ? static_cast<std::uint32_t>(squared) + 1U : never;  // nor is NaN less
  }
  FERRY_HD static std::uint32_t add(std::uint32_t a, std::uint32_t b) noexcept { return b > never - a ? never : a + b; }
  FERRY_HD static std::int64_t clamp(std::int64_t threshold) noexcept {
    constexpr std::int64_t least = std::int64_t{1} << 16U, most = std::int64_t{1} << (cost_bits + fraction_bits);
    return threshold < least ? least : threshold > most ? most : threshold;
  }

  /// A step of a layer earned so much and spent so much. No step more than halves the threshold: what was spent beyond that
  /// is owed.
  FERRY_HD void adapt(std::int64_t earned, std::int64_t spent) noexcept {
    const std::int64_t all = (earned - spent) * 1024 + carried_;
    std::int64_t saved = all / earned;
    if (saved < -512 * std::int64_t{pace_}) saved = -512 * std::int64_t{pace_};
    if (saved < 0 && threshold_ == clamp(0)) saved = 0;  // it cannot fall any further, so nothing is paid off
    carried_ = all - saved * earned;
    threshold_ = clamp(threshold_ + threshold_ / pace_ * saved / 1024);
  }

  TopK gate_;
  Array<std::uint32_t> cost_;   ///< [experts] of those that the rows at hand chose
  std::int64_t allowance_ = 0;  ///< a row and layer, in 2^-20
  std::int64_t threshold_ = 0;  ///< in 2^-40
  std::int64_t carried_ = 0;    ///< saved and not yet seen by the threshold, in 2^-30; below 0: owed
  std::uint32_t k_ = 1, pace_ = 1;
};

static_assert(ExpertRouter<ExpertSkipping>);

}  // namespace ferry::inline FERRY_ABI
