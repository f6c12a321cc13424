/// @file
/// Prefetch everything that was foretold.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry {

/// Takes every predicted request. O(1), no state.
struct NoLimit {
  FERRY_HD static std::uint32_t take(View<const Request> absent, Nanoseconds /*window_ns*/) noexcept {
    return absent.size;
  }
};

static_assert(PrefetchLimit<NoLimit>);

}  // namespace ferry
