/// @file
/// The model's own routing.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry {

/// The k experts with the highest `select` score of each row, best first.
///
/// Source: the models themselves; `renormalise` as Mixtral does (weights divided by their sum), not as
/// Qwen1.5-MoE. Ties go to the lower index, NaN sorts last, the weights are those of `scores.weight`.
/// Complexity: O(E) comparisons a row plus O(k) for each of the few that enter the list.
class TopK {
 public:
  bool renormalise = false;

  void reserve(Carver& /*carve*/, const Shape& shape) {
    experts_ = shape.experts;
    k_ = shape.top_k;
  }

  FERRY_HD void route(const Scores& scores, View<const State> /*present*/, Out<Route>& out) const noexcept {
    const std::uint32_t rows = scores.select.size / experts_;
    for (std::uint32_t row = 0; row < rows; ++row) {
      const float* select = scores.select.data + std::size_t{row} * experts_;
      const float* weight = scores.weight.data + std::size_t{row} * experts_;
      Route* best = out.data + out.size;  // insertion into a list of k, which is sorted all the time
      std::uint32_t found = 0;
      for (std::uint16_t e = 0; e < experts_; ++e) {
        if (found == k_ && !higher(select[e], select[best[k_ - 1].expert])) continue;
        std::uint32_t at = found < k_ ? found++ : k_ - 1U;
        for (; at > 0 && higher(select[e], select[best[at - 1].expert]); --at) best[at] = best[at - 1];
        best[at] = {e, weight[e]};
      }
      if (renormalise) {
        float sum = 0.0F;
        for (std::uint32_t i = 0; i < k_; ++i) sum += best[i].weight;
        for (std::uint32_t i = 0; i < k_; ++i) best[i].weight /= sum;
      }
      out.size += k_;
    }
  }

 private:
  /// Strictly before in the order: equal scores keep the lower index, a NaN is below everything.
  FERRY_HD static bool higher(float a, float b) noexcept { return a > b || (b != b && a == a); }

  std::uint16_t experts_ = 0, k_ = 0;
};

static_assert(ExpertRouter<TopK>);

}  // namespace ferry
