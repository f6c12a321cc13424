/// @file
/// Round-to-nearest: a group's values spread evenly from its least weight to its largest.
#pragma once
#include <cmath>

#include "ferry/codec/packed.hpp"

namespace ferry::inline FERRY_ABI {

/// A fit for `pack`: minimum = the least weight, scale = (largest - least) / (2^bits - 1).
///
/// Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
/// Inference", CVPR 2018, section 3, equation 12, a group at a time.
///
/// Every weight is moved by at most scale / 2, but for float's own rounding of scale and result; equal weights are
/// exact. O(weights), no state.
///
/// Deviations:
/// - the zero point is not rounded to an integer (see PackedGroup): an exact 0 stays 0 only where a code falls on it;
/// - in a group so narrow that its step is below the smallest float, every weight becomes the least.
struct RoundToNearest {
  /// weights: 1 or more, finite. bits: 8, 4 or 2.
  [[nodiscard]] FERRY_HD PackedGroup operator()(View<const float> weights, std::uint32_t bits) const noexcept {
    float low = weights[0], high = weights[0];
    for (const float w : weights) {
      low = w < low ? w : low;
      high = w > high ? w : high;
    }
    // In double: the distance of two floats may be too large for a float.
    PackedGroup group{static_cast<float>((static_cast<double>(high) - static_cast<double>(low)) / largest_code(bits)),
                      low};
    // A scale that was rounded up can take the last code beyond the largest float.
    if (!std::isfinite(group.weight(largest_code(bits)))) group.scale = std::nextafter(group.scale, 0.0F);
    return group;
  }
};

}  // namespace ferry::inline FERRY_ABI
