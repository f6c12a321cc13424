/// @file
/// Fate's limit on prefetches.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode, no more prefetches than a layer's time hides: n copies of t_io each with n <= T / t_io, where
/// T = t_moe + t_gate + t_attn. Prefill is not limited.
///
/// Source: Fate, section 4.3. Copies of different precisions are taken from the front while the sum of their times
/// fits; equal ones give exactly floor(T / t_io).
///
/// Complexity: O(requests taken), no state.
///
/// Deviation. t_moe is what one expert took last, times the experts that this layer runs on the device; the paper
/// averages the layer's times beforehand.
///
/// Ambiguities resolved. All look-aheads from one plan to the next share one T. While T is unknown nothing is limited,
/// and a copy of unknown cost takes nothing of it: before the first layer was measured there is nothing to compute
/// with, and not to prefetch would be a guess, too. A slow link whose copies take longer than T prefetches nothing,
/// as the formula says.
struct TransferBudget {
  /// T as calibrated beforehand, as the paper has it; 0: as measured last.
  Nanoseconds layer_ns = 0;

  FERRY_HD bool further(const PrefetchWindow& window) const noexcept {
    return !limited(window) || window.taken_ns < budget(window);
  }

  FERRY_HD std::uint32_t take(const PrefetchWindow& window, View<const Request> absent) const noexcept {
    if (!limited(window)) return absent.size;
    Nanoseconds left = budget(window) - window.taken_ns;
    std::uint32_t n = 0;
    for (; n < absent.size && absent[n].copy_ns <= left; ++n) left -= absent[n].copy_ns;
    return n;
  }

 private:
  FERRY_HD Nanoseconds budget(const PrefetchWindow& window) const noexcept {
    return layer_ns > 0 ? layer_ns : window.layer_ns;
  }
  FERRY_HD bool limited(const PrefetchWindow& window) const noexcept {
    return window.phase == Phase::decode && budget(window) > 0;
  }
};

static_assert(PrefetchLimit<TransferBudget>);

}  // namespace ferry::inline FERRY_ABI
