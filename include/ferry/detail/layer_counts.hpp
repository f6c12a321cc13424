/// @file
/// How many experts a layer has and a row chooses, in models whose layers differ.
#pragma once
#include "ferry/allotment.hpp"
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The numbers of ModelShape::layer_experts and layer_top_k where plans are made. All calls O(1). State: 4 bytes a layer,
/// none if layers do not differ.
class LayerCounts {
 public:
  void reserve(Carver& carve, const ModelShape& model) {
    all_ = model.experts;
    carve(experts_, model.layer_experts.size());
    carve(top_k_, model.layer_top_k.size());
    if (carve.measuring()) return;
    for (std::uint32_t l = 0; l < experts_.size(); ++l) experts_[l] = model.layer_experts[l];
    for (std::uint32_t l = 0; l < top_k_.size(); ++l) top_k_[l] = model.layer_top_k[l];
  }

  FERRY_HD std::uint32_t experts(std::uint16_t layer) const noexcept {
    return experts_.size() == 0 ? all_ : experts_[layer];
  }
  /// The scores, with their layer's own numbers of experts and routes set.
  FERRY_HD Scores of(Scores scores) const noexcept {
    scores.layer_experts = experts_.size() > 0 ? experts_[scores.layer] : std::uint16_t{0};
    scores.layer_top_k = top_k_.size() > 0 ? top_k_[scores.layer] : std::uint16_t{0};
    return scores;
  }

 private:
  Array<std::uint16_t> experts_, top_k_;  ///< [layers], where they differ
  std::uint16_t all_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
