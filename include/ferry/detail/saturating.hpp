/// @file
/// Sums of times, of which none overflows.
#pragma once
#include <limits>

#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The time that stands for every sum and product that would overflow. Measured times come from an engine's clocks and
/// calibrated ones from a user's file: a wrong one may make a decision worse, and nothing else. All O(1); no operand is
/// negative.
inline constexpr Nanoseconds longest = std::numeric_limits<Nanoseconds>::max();

FERRY_HD constexpr Nanoseconds sum(Nanoseconds a, Nanoseconds b) noexcept {
  constexpr auto most = static_cast<std::uint64_t>(longest);
  const std::uint64_t both = static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b);  // below 2^64
  return both > most ? longest : static_cast<Nanoseconds>(both);
}

/// Limits one expert's time to 2^46 ns (19 hours), so that the sum over a layer's experts cannot overflow, and single terms can
/// be subtracted from it again.
FERRY_HD constexpr Nanoseconds bounded(Nanoseconds a) noexcept {
  constexpr Nanoseconds most = Nanoseconds{1} << 46U;
  return a < most ? a : most;
}

FERRY_HD constexpr Nanoseconds product(Nanoseconds a, std::uint64_t n) noexcept {
  constexpr auto most = static_cast<std::uint64_t>(longest);
  const auto ns = static_cast<std::uint64_t>(a);
  if (((ns | n) >> 31U) == 0) [[likely]]
    return static_cast<Nanoseconds>(ns * n);
  return n != 0 && ns > most / n ? longest : static_cast<Nanoseconds>(ns * n);
}

/// a * by / of, rounded down. `by` and `of` are below 2^15, `of` is not 0.
FERRY_HD constexpr Nanoseconds scaled(Nanoseconds a, std::uint32_t by, std::uint32_t of) noexcept {
  if (a >> 48U == 0) [[likely]]
    return a * by / of;
  return sum(product(a / of, by), a % of * by / of);
}

}  // namespace ferry::inline FERRY_ABI::detail
