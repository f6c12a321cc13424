/// @file
/// A scheduler put together from three small functions.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry {

/// How many predictions to fetch, in which order copies go, and which misses the host computes.
template <PrefetchLimit L, CopyOrder O, Placement P>
struct Schedule : L, O, P {};

}  // namespace ferry
