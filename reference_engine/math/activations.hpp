/// @file
/// What weights are multiplied with.
#pragma once

namespace ferry::engine {

/// What products with weights of codes, packed or in blocks, make of x before.
enum class Activations {
  floats,  ///< nothing
  int8     ///< each 64 columns become -127 to 127 times a scale, to the nearest: less exact, and faster
};

}  // namespace ferry::engine
