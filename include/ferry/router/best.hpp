/// @file
/// The best k of a row of scores.
#pragma once
#include "ferry/model.hpp"

namespace ferry {

/// Strictly before in the order that every policy uses: equal scores keep the lower index first (the earlier one is
/// not displaced), a NaN is below everything.
FERRY_HD constexpr bool ranks_above(float a, float b) noexcept {
  return a > b || (b != b && a == a);
}

/// Sets `expert` of `best[0 .. k)` to the k best of `scores[0 .. n)`, best first; k <= n. Weights are left alone.
/// O(n) comparisons, and O(k) moves for each score that enters the list.
FERRY_HD inline void best_of(const float* scores, std::uint32_t n, std::uint32_t k, Route* best) noexcept {
  if (k == 0) return;
  std::uint32_t found = 0;
  for (std::uint32_t e = 0; e < n; ++e) {
    if (found == k && !ranks_above(scores[e], scores[best[k - 1].expert])) continue;
    std::uint32_t at = found < k ? found++ : k - 1;
    for (; at > 0 && ranks_above(scores[e], scores[best[at - 1].expert]); --at) best[at].expert = best[at - 1].expert;
    best[at].expert = static_cast<std::uint16_t>(e);
  }
}

}  // namespace ferry
