/// @file
/// HOBBIT's layer-level adaptive prediction: several layers ahead from one gate input.
#pragma once
#include <string>

#include "ferry/detail/predicted_experts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// The gates of the next p layers, stacked into one product with this layer's gate input, name each layer's top k.
///
/// Source: HOBBIT, section 3.3. Rows are `softmax(W_m x_l)` [rows, E] for m = l+1 .. l+p, in that order; GateBank
/// makes all p in one product. The paper looks at up to three layers and gives about 90% at the farthest.
///
/// It is one of three parts of the paper's walk, and sees nothing of the others:
///  - The engine asks for the layers l+1, l+2, ... up to `depth` ahead, each with its rows.
///  - The scheduler ends the walk: with a PrefetchLimit such as FirstMiss, whose `further` is false once an absent expert
///    was taken since the plan, it stops at the first layer that lacks a predicted expert.
///  - The core masks from eviction what is predicted and there, until its layer is planned.
/// Precision follows the predicted importance: requests carry HOBBIT's unimportance (detail::PredictedExperts), and the
/// QuantSelector chooses as it does for real ones.
///
/// Complexity: O(rows * E) a layer, and O(n^2) for the order of n named experts at worst. State: 30 bytes an expert.
///
/// Ambiguities resolved. Several rows: the union of their top k, in decode by the largest score, in prefill by votes,
/// then score. (The paper's batch is 1, and it says nothing of prefill.)
class StackedGates {
 public:
  /// The paper's p: how many layers ahead, 1 to 4.
  std::uint32_t depth = 3;

  void reserve(Carver& carve, const Shape& shape) {
    if (depth < 1 || depth > 4) {
      detail::fail<ConfigError>("StackedGates: depth is " + std::to_string(depth) + ", it must be 1 to 4");
    }
    top_k_ = shape.top_k;
    predicted_.reserve(carve, shape);
  }

  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/,
                               View<const std::uint32_t> /*rows*/) noexcept {}

  FERRY_HD void predict(Phase phase, const Scores& scores, Out<Request>& out) noexcept {
    predicted_.clear();
    predicted_.name_best(scores, scores.top_k_or(top_k_));
    predicted_.write(phase, scores.layer, out);
  }

  [[nodiscard]] const char* check() const noexcept { return predicted_.check(); }

 private:
  detail::PredictedExperts predicted_;
  std::uint16_t top_k_ = 0;
};

static_assert(Predictor<StackedGates>);

}  // namespace ferry::inline FERRY_ABI
