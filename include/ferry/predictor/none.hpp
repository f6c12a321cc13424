/// @file
/// No prediction: nothing is prefetched.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// The absent predictor. Engines skip making predicted rows for it.
///
/// Source: none; the baseline that predictors are measured against.
/// Complexity: O(1). No state.
struct NoPrediction {
  static constexpr bool predicts = false;

  static void reserve(Carver& /*carve*/, const Shape& /*shape*/) {}
  FERRY_HD static void observe(std::uint16_t /*layer*/, View<const Route> /*taken*/,
                               View<const std::uint32_t> /*rows*/) noexcept {}
  FERRY_HD static void predict(Phase /*phase*/, const Scores& /*scores*/, Out<Request>& /*out*/) noexcept {}
};

static_assert(Predictor<NoPrediction>);

}  // namespace ferry::inline FERRY_ABI
