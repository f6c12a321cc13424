/// @file
/// The host computes nothing.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Every miss is loaded and runs on the device.
///
/// Source: none; what an engine does that never computes experts on the host.
/// Complexity: O(1). No state.
struct DeviceOnly {
  static constexpr bool computes_on_host = false;

  FERRY_HD static std::uint32_t split(Phase /*phase*/, View<const Request> misses) noexcept { return misses.size; }
};

static_assert(Placement<DeviceOnly>);

}  // namespace ferry::inline FERRY_ABI
