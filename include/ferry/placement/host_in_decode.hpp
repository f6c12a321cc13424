/// @file
/// Misses run where they are.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// In decode every miss runs on the host, in prefill every miss is loaded.
///
/// Source: HOBBIT, section 4 (CPU-GPU cooperative computing; 5.4 measures it); with a static cache also what llama.cpp
/// and Fiddler do.
/// Complexity: O(1). No state.
struct HostInDecode {
  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    return phase == Phase::decode ? 0 : misses.size;
  }
};

static_assert(Placement<HostInDecode>);

}  // namespace ferry::inline FERRY_ABI
