/// @file
/// A checkpoint's blocks with random codes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ferry/codec/blocks.hpp"
#include "support/random.hpp"

namespace ferry::test {

/// Fills a matrix with weights of up to about 30, none of which is infinite or NaN.
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
      using enum BlockType;
      half(m.type == q6_k ? to + 208 : m.type == q3_k ? to + 108 : m.type == q2_k ? to + 80 : to);
      // In the middle of codes of 2, 4 or 5 bits.
      if (m.type == q2_k) half(to + 82, 1);
      if (m.type == q4_k) half(to + 2, 3);
      if (m.type == q5_k) half(to + 2, 4);
      if (m.type == q4_1 || m.type == q5_1) {
        half(to + 2, m.type == q4_1 ? 3 : 4);
        to[3] |= std::byte{0x80};  // here it is added
      }
    }
  }
}

inline constexpr BlockType block_types[] = {BlockType::q8_0,  BlockType::q4_0, BlockType::q4_1,   BlockType::q5_0,
                                            BlockType::q5_1,  BlockType::q2_k, BlockType::q3_k,   BlockType::q4_k,
                                            BlockType::q5_k,  BlockType::q6_k, BlockType::iq4_nl, BlockType::iq4_xs,
                                            BlockType::mxfp4, BlockType::fp8};

}  // namespace ferry::test
