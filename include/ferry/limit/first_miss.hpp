/// @file
/// HOBBIT's adaptive depth.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Walks the layers ahead, l + 1, l + 2, ...: the first that lacks a predicted expert gets all it lacks, and the
/// layers behind it wait for the next plan.
///
/// Source: HOBBIT, section 3.3. How far the walk may go is the predictor's depth (the paper's p, 1 to 3).
/// Complexity: O(1). No state.
struct FirstMiss {
  FERRY_HD static bool further(const PrefetchWindow& window) noexcept { return window.taken == 0; }
  FERRY_HD static std::uint32_t take(const PrefetchWindow& /*window*/, View<const Request> absent) noexcept {
    return absent.size;
  }
};

static_assert(PrefetchLimit<FirstMiss>);

}  // namespace ferry::inline FERRY_ABI
