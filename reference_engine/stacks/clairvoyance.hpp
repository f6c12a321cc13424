/// @file
/// Stacks that know the future, for bounds.
#pragma once
#include "ferry/error.hpp"

namespace ferry::engine {

/// Which part of a stack knows the future.
enum class Clairvoyance {
  none,
  prediction,  ///< its predictor predicts exactly what the next layers will ask for
  cache,       ///< its caches evict what is needed last (Belady)
  both,        ///< predictor and caches
  demand       ///< the same, without any prefetch: Belady's hit rate in this layout
};

/// The stack has no variant that knows the future: it keeps nothing, or what it asks for depends on what is resident.
struct NoFuture : ConfigError {
  using ConfigError::ConfigError;
};

}  // namespace ferry::engine
