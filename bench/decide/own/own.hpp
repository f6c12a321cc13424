/// @file
/// The function that a file for `bench/run own` has to define.
#pragma once
#include "decide/layer_benchmark.hpp"

namespace ferry::bench {

/// Registers stacks of an engine's own, each with `register_layer`.
void register_own();

}  // namespace ferry::bench
