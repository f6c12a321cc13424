/// @file
/// Prefetch everything that was predicted.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Takes every predicted request.
///
/// Source: none; the baseline that limits are measured against.
/// Complexity: O(1). No state.
struct NoLimit {
  FERRY_HD static bool further(const PrefetchWindow& /*window*/) noexcept { return true; }
  FERRY_HD static std::uint32_t take(const PrefetchWindow& /*window*/, View<const Request> absent) noexcept {
    return absent.size;
  }
};

static_assert(PrefetchLimit<NoLimit>);

}  // namespace ferry::inline FERRY_ABI
