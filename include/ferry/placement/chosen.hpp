/// @file
/// A placement that is chosen when the engine runs.
#pragma once
#include "ferry/placement/best_split.hpp"
#include "ferry/placement/device_only.hpp"
#include "ferry/placement/host_in_decode.hpp"
#include "ferry/placement/two_pointer.hpp"

namespace ferry::inline FERRY_ABI {

/// Which placement a ChosenPlacement stands for.
enum class PlacementRule : std::uint8_t {
  device,       ///< DeviceOnly
  host,         ///< HostInDecode
  two_pointer,  ///< TwoPointer
  best_split    ///< BestSplit
};

/// One of the placements, as `rule` says.
///
/// Source: that of the policy that it stands for, as are its deviations.
/// Complexity: that policy's. No state.
template <PlacementRule by_default>
struct ChosenPlacement {
  static constexpr bool needs_ordered_batches = true;

  PlacementRule rule = by_default;  ///< which of them

  FERRY_HD std::uint32_t split(Phase phase, View<const Request> misses) const noexcept {
    switch (rule) {
      case PlacementRule::device:
        return DeviceOnly::split(phase, misses);
      case PlacementRule::host:
        return HostInDecode::split(phase, misses);
      case PlacementRule::two_pointer:
        return TwoPointer::split(phase, misses);
      case PlacementRule::best_split:
        break;
    }
    return BestSplit::split(phase, misses);
  }
};

static_assert(Placement<ChosenPlacement<PlacementRule::two_pointer>>);

}  // namespace ferry::inline FERRY_ABI
