/// @file
/// Gate scores as integers, so that sums of them are the same on every machine.
#pragma once
#include "ferry/model.hpp"

namespace ferry {

inline constexpr std::uint32_t fixed_one = 1U << 24;

/// A gate score in units of 2^-24, rounded to the nearest. Below 0 and NaN count as 0, above 1 as 1.
FERRY_HD constexpr std::uint32_t fixed_score(float score) noexcept {
  if (!(score > 0.0F)) return 0;
  if (score >= 1.0F) return fixed_one;
  return static_cast<std::uint32_t>(static_cast<double>(score) * fixed_one + 0.5);
}

/// The mean of `count` fixed scores, rounded to the nearest; `count` is at least 1.
FERRY_HD constexpr std::uint32_t fixed_mean(std::uint64_t sum, std::uint32_t count) noexcept {
  if (count == 1) return static_cast<std::uint32_t>(sum);  // a division takes longer than the rest of a decode step's
  return static_cast<std::uint32_t>((sum + count / 2) / count);
}

}  // namespace ferry
