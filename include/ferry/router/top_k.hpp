/// @file
/// The model's own routing.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/best.hpp"

namespace ferry::inline FERRY_ABI {

/// What becomes of the weights of a row's k experts.
struct Weighing {
  Renormalise renormalise = Renormalise::unset;  ///< whether they are divided by their sum
  float scale = 1.0F;                            ///< what they are multiplied by behind that
  float least_sum = 0.0F;                        ///< no smaller sum divides them
  float added_to_sum = 0.0F;                     ///< and this is added to it first

  Weighing() = default;
  /// As the model does.
  explicit Weighing(const Shape& shape)
      : renormalise(shape.renormalise),
        scale(shape.scale),
        least_sum(shape.least_sum),
        added_to_sum(shape.added_to_sum) {}

  /// Sets the weights of one row's routes: each expert's own, divided by their sum if the model does that, times `scale`.
  FERRY_HD void weigh(const float* weight, std::uint32_t k, Route* routes) const noexcept {
    for (std::uint32_t i = 0; i < k; ++i) routes[i].weight = weight[routes[i].expert];
    if (renormalise == Renormalise::yes) {
      float sum = 0.0F;
      for (std::uint32_t i = 0; i < k; ++i) sum += routes[i].weight;
      sum += added_to_sum;
      sum = sum < least_sum ? least_sum : sum;
      for (std::uint32_t i = 0; i < k; ++i) routes[i].weight /= sum;
    }
    if (scale == 1.0F) return;
    for (std::uint32_t i = 0; i < k; ++i) routes[i].weight *= scale;
  }
};

/// The k experts with the highest `select` score of each row, best first.
///
/// Source: the models themselves; weights are divided by their sum if the shape says so. Ties go to the lower index, NaN
/// sorts last, the weights are those of `scores.weight`. Of a layer with a smaller k the last routes are `no_expert`.
/// Complexity: O(E) comparisons a row plus O(k) for each of the few that enter the list.
class TopK {
 public:
  void reserve(Carver& /*carve*/, const Shape& shape) {
    experts_ = shape.experts;
    k_ = shape.top_k;
    weighing_ = Weighing(shape);
  }

  FERRY_HD void route(Phase /*phase*/, const Scores& scores, View<const State> /*present*/,
                      Out<Route>& out) const noexcept {
    const std::uint32_t rows = scores.select.size / experts_, k = scores.top_k_or(k_);
    const std::uint32_t experts = scores.experts_or(experts_);
    for (std::uint32_t row = 0; row < rows; ++row) {
      Route* best = out.data + out.size;
      detail::best_of(scores.select.data + std::size_t{row} * experts_, experts, k, best);
      weighing_.weigh(scores.weight.data + std::size_t{row} * experts_, k, best);
      for (std::uint32_t i = k; i < k_; ++i) best[i] = {};
      out.size += k_;
    }
  }

 private:
  std::uint16_t experts_ = 0, k_ = 0;
  Weighing weighing_;
};

static_assert(ExpertRouter<TopK>);

}  // namespace ferry::inline FERRY_ABI
