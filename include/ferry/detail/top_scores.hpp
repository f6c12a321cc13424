/// @file
/// Which of the experts that a layer asks for are top-score ones, for the counts of misses by importance.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/best.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// An expert is top-score in a step if any row that chose it gives it more than (1 + alpha) times the row's
/// (k+1)-th score, and low-score otherwise.
///
/// Source: Importance-driven scheduling, section 5.1 and Fig. 15. O(rows * E) a layer. State: 1 byte an expert, 12 for
/// each of k + 1.
class TopScores {
 public:
  /// A negative `alpha` turns it off: no state, nothing is counted.
  void reserve(Carver& carve, const Shape& shape, float alpha) {
    factor_ = 1.0F + alpha;
    experts_ = shape.experts;
    k_ = shape.top_k;
    on_ = alpha >= 0;
    carve(top_, on_ ? shape.experts : 0);
    carve(best_, on_ ? shape.top_k + 1U : 0);
  }

  FERRY_HD bool on() const noexcept { return on_; }

  FERRY_HD FERRY_HOT void mark(const Scores& scores) noexcept {
    if (on_) mark_rows(scores.select, scores.experts_or(experts_), scores.top_k_or(k_));
  }

  FERRY_HD bool operator[](std::uint16_t expert) const noexcept { return top_[expert] != 0; }

 private:
  FERRY_HD void mark_rows(View<const float> select, std::uint32_t experts, std::uint32_t k) noexcept {
    for (std::uint8_t& t : top_) t = 0;
    for (std::uint32_t first = 0; first < select.size; first += experts_) {
      const float* row = select.data + first;
      const std::uint32_t ranks = k < experts ? k + 1U : k;
      best_of(row, experts, ranks, best_.data());
      for (std::uint32_t i = 0; i < k; ++i) {
        // Not "greater": where there is no (k+1)-th score, or only a NaN, nothing is a rival.
        if (k == experts || !(row[best_[i].expert] <= factor_ * row[best_[k].expert])) top_[best_[i].expert] = 1;
      }
    }
  }

  Array<std::uint8_t> top_;  ///< [experts]
  Array<Route> best_;        ///< [k + 1]
  float factor_ = 0.0F;
  std::uint16_t experts_ = 0, k_ = 0;
  bool on_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
