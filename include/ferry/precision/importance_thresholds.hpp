/// @file
/// HOBBIT's precision by importance.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// The more of a row's weight goes to the experts ranked above an expert, the fewer bits it crosses with; beyond a second
/// threshold it is skipped.
///
/// Source: HOBBIT, section 3.2, Eq. 2. A row's k experts are ranked by weight, the weights normalised to sum 1;
/// s_i is the sum of those ranked above expert i, s_0 = 0. On a miss: s <= T1 high, T1 < s <= T2 low, s > T2 skip.
/// T1 = T2 = 1 is neutral: everything is high. The paper's 0.6 and 0.9 on Mixtral give 67, 30 and 3%.
///
/// s is Request::unimportance. Where several rows want an expert, the smallest s counts: the expert is as important as
/// it is to the row that needs it most. `high` is the model's own precision by default; the paper's pairs are f16 + INT4
/// and INT8 + INT2.
///
/// Complexity: O(requests), no state.
///
/// Ambiguities resolved. The thresholds are inclusive as printed, so that the first expert of a row is always high,
/// and s = NaN is high. Predicted experts are treated alike (3.3: "versions of the experts with different precision
/// levels"). So is prefill, where the smallest s over many rows makes most experts high.
struct ImportanceThresholds {
  static constexpr bool needs_unimportance = true;

  float t1 = 0.6F, t2 = 0.9F;  ///< 0 <= t1 <= t2 <= 1
  /// What important experts cross at, and what less important ones do.
  Precision high = Precision::full, low = Precision::int4;

  void reserve(Carver& /*carve*/, const Shape& /*shape*/) const {
    if (!(t1 >= 0.0F && t1 <= t2 && t2 <= 1.0F)) {
      detail::fail<ConfigError>("ImportanceThresholds: t1 is " + std::to_string(t1) + " and t2 is " +
                                std::to_string(t2) + ", expected 0 <= t1 <= t2 <= 1");
    }
    if (low >= high || low == Precision::skip) {
      detail::fail<ConfigError>("ImportanceThresholds: low is precision number " +
                                std::to_string(static_cast<unsigned>(low)) + " and high is " +
                                std::to_string(static_cast<unsigned>(high)) +
                                ", expected int2 (1) or better for low, and better than low for high");
    }
  }

  FERRY_HD void select(Phase /*phase*/, bool /*demand*/, View<Request> requests) const noexcept {
    for (Request& r : requests) r.want.precision = of(r.unimportance);
  }

  FERRY_HD std::uint8_t precisions() const noexcept {
    std::uint32_t may = 1U << static_cast<unsigned>(high);
    if (t1 < t2) may |= 1U << static_cast<unsigned>(low);
    if (t2 < 1.0F) may |= 1U << static_cast<unsigned>(Precision::skip);
    return static_cast<std::uint8_t>(may);
  }

 private:
  FERRY_HD Precision of(float unimportance) const noexcept {
    const float s = unimportance > 1.0F ? 1.0F : unimportance;  // a sum of shares may be rounded to more than 1
    return s > t2 ? Precision::skip : s > t1 ? low : high;
  }
};

static_assert(QuantSelector<ImportanceThresholds>);

}  // namespace ferry::inline FERRY_ABI
