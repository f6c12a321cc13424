/// @file
/// What weights are multiplied with.
#pragma once

namespace ferry::engine {

/// What x becomes before products with weights that are codes, packed or in blocks.
enum class Activations {
  floats,  ///< nothing
  int8  ///< each 64 columns become whole numbers from -127 to 127 times a scale, to the nearest: less exact, and faster
};

}  // namespace ferry::engine
