/// @file
/// What predictors share: collecting the experts that rows of predicted scores name, surest first.
#pragma once
#include <limits>

#include "ferry/concepts.hpp"
#include "ferry/detail/best.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Sorts by `before(a, b)`, a strict order, in O(n^2) at worst: by insertion, since lists are short and often in order.
template <class Before>
FERRY_HD void sort_experts(View<std::uint16_t> experts, const Before& before) noexcept {
  for (std::uint32_t i = 1; i < experts.size; ++i) {
    const std::uint16_t e = experts[i];
    std::uint32_t at = i;
    for (; at > 0 && before(e, experts[at - 1]); --at) experts[at] = experts[at - 1];
    experts[at] = e;
  }
}

/// The experts of one layer that rows of predicted scores name, and what the rows tell of each: votes, the largest
/// score and weight, and the unimportance.
///
/// Unimportance is HOBBIT's (section 3.2, Eq. 2), applied to predicted scores: of the k best of a row, with weights
/// g_0 >= g_1 >= ..., the i-th has (g_0 + ... + g_{i-1}) / (g_0 + ... + g_{k-1}). One behind the k best has 1.
/// Of several rows the smallest counts.
///
/// Not a policy: gate predictors are made of it. Complexity of a row that names m: O(E) comparisons, O(m) beside, and
/// O(k^2) if its weights do not descend. State: 30 bytes an expert.
///
/// Ambiguities resolved. The k best are those of `select`; if `weight` ranks them differently, shares go by `weight`.
/// A NaN score names nothing and has no weight. A share that is not a number (weights of 0 or NaN) counts as 0: important.
class PredictedExperts {
 public:
  void reserve(Carver& carve, const Shape& shape) {
    experts_ = shape.experts;
    top_k_ = shape.top_k;
    carve(found_, shape.experts);
    carve(score_, shape.experts, no_score);
    carve(named_, shape.experts);
    carve(best_, shape.experts);
  }

  FERRY_HD void clear() noexcept {
    for (std::uint32_t i = 0; i < count_; ++i) {
      found_[named_[i]] = {};
      score_[named_[i]] = no_score;
    }
    count_ = rows_named_ = 0;
  }

  FERRY_HD std::uint32_t rows(const Scores& scores) const noexcept { return scores.select.size / experts_; }

  /// Each row names its `count` best.
  FERRY_HD void name_best(const Scores& scores, std::uint32_t count) noexcept {
    for (std::uint32_t row = 0; row < rows(scores); ++row) {
      rank(scores, row, count);
      name(scores, row, count);
    }
  }

  /// The `count` best of a row, best first; weights are not set. Valid until the next call.
  FERRY_HD View<const Route> rank(const Scores& scores, std::uint32_t row, std::uint32_t count) noexcept {
    const std::uint32_t k = scores.top_k_or(top_k_), ranked = count > k ? count : k;  // unimportance needs the best k
    best_of(scores.select.data + std::size_t{row} * experts_, scores.experts_or(experts_), ranked, best_.data());
    return {best_.data(), count};
  }

  /// The row that was ranked last names its `count` best, no more than were ranked.
  FERRY_HD void name(const Scores& scores, std::uint32_t row, std::uint32_t count) noexcept {
    const float* select = scores.select.data + std::size_t{row} * experts_;
    const float* weight = scores.weight.data + std::size_t{row} * experts_;
    ++rows_named_;
    std::uint32_t chosen = 0;  // the k best, up to a NaN
    bool descends = true;
    float sum = 0.0F;
    for (const std::uint32_t k = scores.top_k_or(top_k_); chosen < k && !is_nan(select[best_[chosen].expert]);
         ++chosen) {
      const float w = weight[best_[chosen].expert];
      descends = descends && (chosen == 0 || w <= weight[best_[chosen - 1].expert]);
      sum += w;
    }
    float above = 0.0F;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint16_t e = best_[i].expert;
      if (is_nan(select[e])) return;  // as are all that follow
      Found& f = found_[e];
      if (f.rows == 0) named_[count_++] = e;
      if (f.rows == 0 || select[e] > score_[e]) score_[e] = select[e];
      if (weight[e] > f.weight) f.weight = weight[e];
      const float share = i < chosen ? (descends ? above : weight_above(weight, chosen, i)) / sum : 1.0F;
      if (!(share >= f.unimportance)) f.unimportance = share > 0.0F ? share : 0.0F;
      above += weight[e];
      ++f.rows;
    }
  }

  /// Appends a request for each, surest first: in decode by the largest score, in prefill by votes, then score.
  FERRY_HD void write(Phase phase, std::uint16_t layer, Out<Request>& out) noexcept {
    const View<std::uint16_t> named{named_.data(), count_};
    if (rows_named_ > 1 && phase == Phase::decode) {
      best_of(score_.data(), experts_, count_, best_.data());
      for (std::uint32_t i = 0; i < count_; ++i) named[i] = best_[i].expert;
    } else if (rows_named_ > 1) {  // one row names them in order
      sort_experts(named, [&](std::uint16_t a, std::uint16_t b) {
        if (found_[a].rows != found_[b].rows) return found_[a].rows > found_[b].rows;
        return score_[a] != score_[b] ? score_[a] > score_[b] : a < b;
      });
    }
    for (const std::uint16_t e : named) {
      const Found& f = found_[e];
      Request* r = out.add();
      if (r == nullptr) return;
      r->want.id = {layer, e};
      r->rows = f.rows;
      r->importance = f.weight;
      r->unimportance = f.unimportance;
      r->confidence = phase == Phase::decode ? score_[e] : static_cast<float>(f.rows);
    }
  }

  /// The first invariant that does not hold, or nullptr.
  [[nodiscard]] const char* check() const noexcept {
    std::uint32_t named = 0;
    for (std::uint32_t e = 0; e < experts_; ++e) {
      const Found& f = found_[e];
      named += f.rows > 0 ? 1 : 0;
      if (f.rows > rows_named_) return "PredictedExperts: more rows named an expert than there were";
      if (is_nan(score_[e]) != (f.rows == 0)) return "PredictedExperts: a score is left from before, or lacking";
      if (f.rows == 0 && (f.weight != 0.0F || f.unimportance != 1.0F))
        return "PredictedExperts: a weight or unimportance is left from before";
    }
    for (std::uint32_t i = 0; i < count_; ++i) {
      if (found_[named_[i]].rows == 0) return "PredictedExperts: an expert is listed that no row named";
    }
    return named == count_ ? nullptr : "PredictedExperts: the list lacks an expert that was named";
  }

 private:
  struct Found {
    std::uint32_t rows = 0;     ///< that named it
    float weight = 0.0F;        ///< the largest
    float unimportance = 1.0F;  ///< the smallest
  };

  FERRY_HD static bool is_nan(float x) noexcept { return x != x; }

  /// The sum of those weights of the `chosen` best that rank above the i-th one's. It is taken in the same order as the
  /// sum of all of them, and so never exceeds that sum, even after rounding.
  FERRY_HD float weight_above(const float* weight, std::uint32_t chosen, std::uint32_t i) const noexcept {
    const float own = weight[best_[i].expert];
    float above = 0.0F;
    for (std::uint32_t j = 0; j < chosen; ++j) {
      const float w = weight[best_[j].expert];
      if (w > own || (w == own && j < i)) above += w;
    }
    return above;
  }

  static constexpr float no_score = std::numeric_limits<float>::quiet_NaN();  ///< ranks below all others

  Array<Found> found_;          ///< [experts]
  Array<float> score_;          ///< [experts] the largest that each was named with
  Array<std::uint16_t> named_;  ///< [experts], the first count_ of them
  Array<Route> best_;           ///< [experts], of the row ranked last
  std::uint32_t count_ = 0, rows_named_ = 0;
  std::uint16_t experts_ = 0, top_k_ = 0;
};

static_assert(part::State<PredictedExperts> && part::ReservesForModel<PredictedExperts>);

}  // namespace ferry::inline FERRY_ABI::detail
