/// @file
/// Gate scores as integers, so that sums of them are the same on every machine.
#pragma once
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

inline constexpr std::int32_t fixed_one = 1 << 24;

/// A gate score in units of 2^-24, rounded to the nearest. Below 0 and NaN count as 0, above 1 as 1.
FERRY_HD constexpr std::int32_t fixed_score(float score) noexcept {
  // Clamped by its bits, which ascend as the floats above 0 do: compilers make no vectors of clamped floats.
  constexpr auto infinity = 0x7f800000, one = 0x3f800000;
  auto bits = __builtin_bit_cast(std::int32_t, score);
  bits = bits > 0 ? bits : 0;
  bits &= ~((infinity - bits) >> 31);  // 0 for a NaN
  bits = bits < one ? bits : one;
  const float units = __builtin_bit_cast(float, bits) * static_cast<float>(fixed_one);
  const auto whole = static_cast<std::int32_t>(units);
  return whole + (units - static_cast<float>(whole) >= 0.5F ? 1 : 0);
}

/// The mean of `count` fixed scores, rounded to the nearest; `count` is at least 1.
FERRY_HD constexpr std::int64_t fixed_mean(std::int64_t sum, std::int64_t count) noexcept {
  if (count == 1) return sum;  // a division takes longer than the rest of a decode step's
  return (sum + count / 2) / count;
}

}  // namespace ferry::inline FERRY_ABI::detail
