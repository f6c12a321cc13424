/// @file
/// Blocks of a checkpoint's with any codes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ferry/codec/blocks.hpp"
#include "support/random.hpp"

namespace ferry::test {

/// Fills a matrix with weights of up to some 30, none of which is infinite or no number.
inline void fill_blocks(const BlockLayout& m, std::byte* to, Random& random) {
  const std::uint32_t bytes = block_bytes(m.type);
  const auto half = [&](std::byte* at, std::uint32_t above = 0) {  // 1/64 to 1/32, or 2^above times that
    at[0] = static_cast<std::byte>(random.below(256));
    at[1] = static_cast<std::byte>((0x24U + 4 * above) | random.below(4));
  };
  for (std::uint64_t i = 0; i < m.bytes() / bytes; ++i, to += bytes) {
    for (std::uint32_t b = 0; b < bytes; ++b) to[b] = static_cast<std::byte>(random.below(256));
    if (m.type == BlockType::fp8) {
      const float scale = (random.unit() + 0.1F) / 16;
      std::memcpy(to, &scale, sizeof(scale));
      for (std::uint32_t b = 4; b < bytes; ++b) {
        if ((to[b] & std::byte{0x7f}) == std::byte{0x7f}) to[b] = std::byte{1};  // no number
      }
    } else if (m.type == BlockType::mxfp4) {
      to[0] = static_cast<std::byte>(120 + random.below(9));
    } else {
      half(m.type == BlockType::q6_k ? to + 208 : to);
      // In the middle of codes of 4 or 5 bits.
      if (m.type == BlockType::q4_k || m.type == BlockType::q5_k) half(to + 2, m.type == BlockType::q4_k ? 3 : 4);
    }
  }
}

inline constexpr BlockType block_types[] = {BlockType::q8_0, BlockType::q4_0,  BlockType::q4_k, BlockType::q5_k,
                                            BlockType::q6_k, BlockType::mxfp4, BlockType::fp8};

}  // namespace ferry::test
