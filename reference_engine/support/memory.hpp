/// @file
/// How much memory there is.
#pragma once
#include <cstdint>

namespace ferry::engine {

/// What this machine, or the container that we are in, has, in bytes.
std::uint64_t physical_memory();
/// Whether it holds so many bytes beside what everything else takes.
bool fits_in_memory(std::uint64_t bytes);

}  // namespace ferry::engine
