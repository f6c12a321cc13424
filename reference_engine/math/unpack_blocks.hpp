/// @file
/// Blocks to floats, by the widest vectors that a processor has.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/codec/blocks.hpp"

namespace ferry::engine {

/// Writes [count, columns]. What `unpack_row` writes, bit for bit.
void unpack_rows(const BlockLayout& w, const std::byte* weights, std::uint32_t first, std::uint32_t count, float* to);

}  // namespace ferry::engine
