/// @file
/// Counts that halve.
#pragma once
#include <string>

#include "ferry/error.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Counts do not shrink, since that would touch all of them in each step. Instead a use weighs more and more: by the factor
/// 2^(1/half_life) each step, in integers. When a use weighs 16 times what it did at first, everything is divided by 16.
///
/// A prefill step counts as one decode step a row, but as no more than an eighth of the half-life, because all its rows belong
/// to one text. In each of these steps an expert counts as used as often as the mean row of the prompt chose it.
class GrowingWeight {
 public:
  static constexpr std::int64_t one = 1 << 16;  ///< what a use weighs at first
  static constexpr unsigned shift = 4;          ///< of a division by 16

  void set(std::uint32_t half_life, const char* whose) {
    if (half_life == 0 || half_life > 4096) {
      detail::fail<ConfigError>(std::string(whose) + ": half_life is " + std::to_string(half_life) +
                                " steps, expected 1 to 4096");
    }
    most_steps_ = half_life > 8 ? half_life / 8 : 1;
    // 2^(1/half_life) - 1 in units of 2^-24, by its series: x = ln 2 / half_life, x + x^2/2 + x^3/6 + ...
    const std::int64_t x = (std::int64_t{11629080} + half_life / 2) / half_life;  // ln 2 = 11629080 / 2^24
    std::int64_t term = x;
    growth_ = 0;
    for (std::int64_t n = 2; term > 0; ++n) {
      growth_ += term;
      term = (term * x >> 24U) / n;
    }
  }

  /// True: everything that was counted has to be divided by 16 (`shift`) now.
  FERRY_HD bool begin_step(const Step& step) noexcept {
    steps_ = 1;
    if (step.phase == Phase::prefill) steps_ = step.sequence.size < most_steps_ ? step.sequence.size : most_steps_;
    for (std::uint32_t i = 0; i < steps_; ++i) weight_ += (weight_ * growth_ + (1 << 23)) >> 24U;
    if (weight_ < one << shift) return false;
    weight_ >>= shift;
    return true;
  }

  /// What a use in this step weighs.
  FERRY_HD std::int64_t operator()() const noexcept { return weight_; }
  /// How many decode steps this step counts as.
  FERRY_HD std::uint32_t steps() const noexcept { return steps_; }

  [[nodiscard]] bool is_valid() const noexcept { return weight_ >= one && weight_ < one << shift; }

 private:
  std::int64_t weight_ = one;
  std::int64_t growth_ = 0;  ///< a step, in units of 2^-24
  std::uint32_t steps_ = 1, most_steps_ = 1;
};

}  // namespace ferry::inline FERRY_ABI::detail
