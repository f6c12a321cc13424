/// @file
/// Matrices in the block formats that published checkpoints have: those of GGUF files, MXFP4, and FP8 with a scale a block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "ferry/codec/pass_through.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// How some adjacent weights of a row lie together. Layouts of all but the last are GGML's (ggml-common.h), by its names.
enum class BlockType : std::uint8_t {
  q8_0,    ///< 32 weights: f16 d, 32 int8 q: d q
  q4_0,    ///< 32: f16 d, 16 bytes of 4-bit q, the first 16 in the low bits: d (q - 8)
  q4_1,    ///< 32: f16 d, f16 m, q as q4_0 has its: d q + m
  q5_0,    ///< 32: f16 d, 4 bytes of fifth bits, the first in the lowest, q as q4_0 has its: d (q - 16)
  q5_1,    ///< 32: f16 d, f16 m, the rest as q5_0's: d q + m
  q2_k,    ///< 256: 16 bytes of 4-bit scales s and, above, minima t, 64 bytes of 2-bit q, f16 d, f16 m: d s q - m t
  q3_k,    ///< 256: 32 bytes of third bits, 64 of the low two, 16 6-bit scales s in 12, f16 d: d (s - 32) (q - 4)
  q4_k,    ///< 256: f16 d, f16 m, 8 6-bit scales s and minima t in 12 bytes, 128 bytes of 4-bit q: d s q - m t
  q5_k,    ///< the same with 32 bytes of fifth bits ahead of the others
  q6_k,    ///< 256: 128 bytes of low 4 bits and 64 of high 2 bits of q, 16 int8 scales s, f16 d: d s (q - 32)
  iq4_nl,  ///< 32: as q4_0, but q is one of 16 numbers (detail::iq4_value): d q
  iq4_xs,  ///< 256: f16 d, 8 6-bit scales s, their high bits first, in 6 bytes, 128 bytes of q: d (s - 32) q
  mxfp4,   ///< 32: an exponent e, 16 bytes of 4-bit floats (E2M1) as q4_0 has its q: 2^(e - 127) q
  fp8      ///< 128: f32 d, 128 floats of 8 bits (E4M3, no infinities): d q
};

/// Weights of a block.
FERRY_HD constexpr std::uint32_t block_weights(BlockType t) noexcept {
  switch (t) {
    case BlockType::q2_k:
    case BlockType::q3_k:
    case BlockType::q4_k:
    case BlockType::q5_k:
    case BlockType::q6_k:
    case BlockType::iq4_xs:
      return 256;
    case BlockType::fp8:
      return 128;
    default:
      return 32;
  }
}

/// Bytes of a block.
FERRY_HD constexpr std::uint32_t block_bytes(BlockType t) noexcept {
  switch (t) {
    case BlockType::q8_0:
      return 34;
    case BlockType::q4_0:
    case BlockType::iq4_nl:
      return 18;
    case BlockType::q4_1:
      return 20;
    case BlockType::q5_0:
      return 22;
    case BlockType::q5_1:
      return 24;
    case BlockType::q2_k:
      return 84;
    case BlockType::q3_k:
      return 110;
    case BlockType::q4_k:
      return 144;
    case BlockType::q5_k:
      return 176;
    case BlockType::q6_k:
      return 210;
    case BlockType::iq4_xs:
      return 136;
    case BlockType::mxfp4:
      return 17;
    default:
      return 132;
  }
}

/// How a matrix [rows, columns] lies in memory: each row is its blocks, one after another. A last block that the columns do not
/// fill is stored whole; GGML's formats have no such block. The matrix may lie at any address.
///
/// Weights come back as the format's own code computes them: each product and sum is rounded to float. That holds where the
/// compiler does not contract them to one rounding, as it may for processors with fused multiply-add (-ffp-contract=off).
struct BlockLayout {
  /// Of the matrix.
  std::uint32_t rows = 0, columns = 0;
  BlockType type = BlockType::q8_0;  ///< in which blocks

  /// Throws ConfigError unless rows and columns are not 0, there are at most 2^60 weights, and blocks are filled.
  void validate() const {
    if (rows == 0 || columns == 0 || std::uint64_t{rows} * columns > std::uint64_t{1} << 60U) {
      detail::fail<ConfigError>("BlockLayout: the matrix is " + std::to_string(rows) + " x " + std::to_string(columns) +
                                ", expected 1 to 2^60 weights");
    }
    if (type != BlockType::fp8 && columns % block_weights(type) != 0) {
      detail::fail<ConfigError>("BlockLayout: " + std::to_string(columns) + " columns, expected a multiple of " +
                                std::to_string(block_weights(type)));
    }
  }

  /// Blocks of one row.
  [[nodiscard]] FERRY_HD constexpr std::uint32_t row_blocks() const noexcept {
    return (columns + block_weights(type) - 1) / block_weights(type);
  }
  /// Bytes of one row.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t row_bytes() const noexcept {
    return std::uint64_t{row_blocks()} * block_bytes(type);
  }
  /// Bytes of the matrix.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t bytes() const noexcept { return rows * row_bytes(); }
};

namespace detail {

FERRY_HD inline std::uint32_t byte_at(const std::byte* at, std::uint32_t i) noexcept {
  return static_cast<std::uint32_t>(at[i]);
}
FERRY_HD inline float half_at(const std::byte* at) noexcept {
  return widen<FloatType::f16>(at);
}

/// E4M3: 1 sign, 4 exponent (bias 7), 3 fraction bits; all ones is no number.
FERRY_HD inline float widen_e4m3(std::uint32_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x80U) << 24U, exponent = bits >> 3U & 15U, fraction = bits & 7U;
  if ((bits & 0x7fU) == 0x7fU) return same_bits<float>(0x7fc00000U);
  std::uint32_t magnitude = (exponent + 120) << 23U | fraction << 20U;  // 120: the biases differ by 127 - 7
  if (exponent == 0) magnitude = same_bits<std::uint32_t>(static_cast<float>(fraction) * 0x1p-9F);
  return same_bits<float>(sign | magnitude);
}

/// Twice an E2M1: 1 sign, 2 exponent, 1 fraction bit.
FERRY_HD inline float twice_e2m1(std::uint32_t bits) noexcept {
  const std::uint32_t exponent = bits >> 1U & 3U, fraction = bits & 1U;
  const auto magnitude = static_cast<std::int32_t>(exponent == 0 ? fraction : (2U + fraction) << (exponent - 1U));
  return static_cast<float>((bits & 8U) != 0 ? -magnitude : magnitude);  // a zero has no sign, as in GGML
}

/// Half of 2^(e - 127), since block_numbers gives twice the floats of mxfp4, which are whole numbers.
FERRY_HD inline float half_power(std::uint32_t e) noexcept {
  return same_bits<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23U);
}

/// What a code of iq4_nl and iq4_xs stands for.
FERRY_HD constexpr std::int32_t iq4_value(std::uint32_t code) noexcept {
  constexpr std::int32_t values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return values[code];
}

/// Four bytes, the first in the lowest bits.
FERRY_HD inline std::uint32_t word_at(const std::byte* at) noexcept {
  return byte_at(at, 0) | byte_at(at, 1) << 8U | byte_at(at, 2) << 16U | byte_at(at, 3) << 24U;
}

/// Scale number i of 16 of q3_k, less 32.
FERRY_HD inline std::int32_t q3_k_scale(const std::byte* packed, std::uint32_t i) noexcept {
  const std::uint32_t low = byte_at(packed, i % 8) >> i / 8 * 4 & 15U,
                      high = byte_at(packed, 8 + i % 4) >> i / 4 * 2 & 3U;
  return static_cast<std::int32_t>(low | high << 4U) - 32;
}
/// Scale number i of 8 of a block of iq4_xs, less 32.
FERRY_HD inline std::int32_t iq4_xs_scale(const std::byte* block, std::uint32_t i) noexcept {
  const std::uint32_t low = byte_at(block, 4 + i / 2) >> i % 2 * 4 & 15U,
                      high = byte_at(block, 2 + i / 4) >> i % 4 * 2 & 3U;
  return static_cast<std::int32_t>(low | high << 4U) - 32;
}

/// Scale and minimum number i of 8, of 6 bits each.
FERRY_HD inline std::uint32_t k_scale(const std::byte* packed, std::uint32_t i) noexcept {
  if (i < 4) return byte_at(packed, i) & 63U;
  return (byte_at(packed, i + 4) & 15U) | (byte_at(packed, i - 4) >> 6U) << 4U;
}
FERRY_HD inline std::uint32_t k_minimum(const std::byte* packed, std::uint32_t i) noexcept {
  if (i < 4) return byte_at(packed, i + 4) & 63U;
  return byte_at(packed, i + 4) >> 4U | (byte_at(packed, i) >> 6U) << 4U;
}

/// Weights that have one scale, of all types but fp8.
FERRY_HD constexpr std::uint32_t group_weights(BlockType t) noexcept {
  return t == BlockType::q2_k || t == BlockType::q3_k || t == BlockType::q6_k ? 16 : 32;
}

/// Whether a minimum is subtracted from the products of scales and numbers; q4_1 and q5_1 add it.
FERRY_HD constexpr bool has_minima(BlockType t) noexcept {
  return t == BlockType::q4_1 || t == BlockType::q5_1 || t == BlockType::q2_k || t == BlockType::q4_k ||
         t == BlockType::q5_k;
}

/// 32 codes of 4 bits, the first 16 in the low bits of as many bytes.
FERRY_HD inline void four_bits(const std::byte* at, std::int8_t* q) noexcept {
  for (std::uint32_t i = 0; i < 16; ++i) {
    q[i] = static_cast<std::int8_t>(byte_at(at, i) & 15U);
    q[i + 16] = static_cast<std::int8_t>(byte_at(at, i) >> 4U);
  }
}

/// The 32 or 256 whole numbers of a block that its scales are multiplied with; of mxfp4, twice its floats. Not for fp8.
FERRY_HD inline void block_numbers(BlockType type, const std::byte* at, std::int8_t* q) noexcept {
  const auto add = [&](std::uint32_t i, std::uint32_t bits) {
    q[i] = static_cast<std::int8_t>(q[i] + static_cast<std::int32_t>(bits));
  };
  const auto less = [&](int centre) {
    for (std::uint32_t i = 0; i < block_weights(type); ++i) q[i] = static_cast<std::int8_t>(q[i] - centre);
  };
  const auto fifth_bits = [&](std::uint32_t bits) {
    for (std::uint32_t i = 0; i < 32; ++i) add(i, (bits >> i & 1U) << 4U);
  };
  const auto two_bits = [&](const std::byte* low) {
    for (std::uint32_t i = 0; i < 256; ++i) {
      q[i] = static_cast<std::int8_t>(byte_at(low, i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3U);
    }
  };
  switch (type) {
    case BlockType::q8_0:
      for (std::uint32_t i = 0; i < 32; ++i) q[i] = static_cast<std::int8_t>(byte_at(at, 2 + i));
      return;
    case BlockType::q4_0:
      four_bits(at + 2, q);
      return less(8);
    case BlockType::q4_1:
      return four_bits(at + 4, q);
    case BlockType::q5_0:
      four_bits(at + 6, q);
      fifth_bits(word_at(at + 2));
      return less(16);
    case BlockType::q5_1:
      four_bits(at + 8, q);
      return fifth_bits(word_at(at + 4));
    case BlockType::q2_k:
      return two_bits(at + 16);
    case BlockType::q3_k:
      two_bits(at + 32);
      for (std::uint32_t i = 0; i < 256; ++i) add(i, (byte_at(at, i % 32) >> i / 32 & 1U) << 2U);
      return less(4);
    case BlockType::q4_k:
    case BlockType::q5_k: {
      const std::byte* low = at + (type == BlockType::q5_k ? 48 : 16);
      for (std::uint32_t i = 0; i < 256; ++i) {
        q[i] = static_cast<std::int8_t>(byte_at(low, i / 64 * 32 + i % 32) >> i / 32 % 2 * 4 & 15U);
      }
      if (type == BlockType::q4_k) return;
      for (std::uint32_t i = 0; i < 256; ++i) add(i, (byte_at(at, 16 + i % 32) >> i / 32 & 1U) << 4U);
      return;
    }
    case BlockType::q6_k:
      for (std::uint32_t i = 0; i < 256; ++i) {
        const std::uint32_t half = i / 128, part = i % 128 / 32;
        q[i] = static_cast<std::int8_t>(byte_at(at, half * 64 + part % 2 * 32 + i % 32) >> part / 2 * 4 & 15U);
        add(i, (byte_at(at, 128 + half * 32 + i % 32) >> 2 * part & 3U) << 4U);
      }
      return less(32);
    case BlockType::iq4_nl:
    case BlockType::iq4_xs:
      for (std::uint32_t i = 0; i < block_weights(type); i += 32) {
        four_bits(at + (type == BlockType::iq4_nl ? 2 : 8) + i / 2, q + i);
        for (std::uint32_t j = i; j < i + 32; ++j) {
          q[j] = static_cast<std::int8_t>(iq4_value(static_cast<std::uint32_t>(q[j])));
        }
      }
      return;
    default:
      four_bits(at + 1, q);
      for (std::uint32_t i = 0; i < 32; ++i)
        q[i] = static_cast<std::int8_t>(twice_e2m1(static_cast<std::uint32_t>(q[i])));
  }
}

/// Scale and minimum of each group of a block: at most 16. A weight is scale * q - minimum. Not of fp8.
FERRY_HD inline void block_scales(BlockType type, const std::byte* at, float* scales, float* minima) noexcept {
  const std::uint32_t groups = block_weights(type) / group_weights(type);
  const bool behind = type == BlockType::q2_k || type == BlockType::q3_k || type == BlockType::q6_k;
  const float d = half_at(behind ? at + block_bytes(type) - (type == BlockType::q2_k ? 4 : 2) : at);
  const float m = has_minima(type) ? half_at(type == BlockType::q2_k ? at + 82 : at + 2) : 0;
  for (std::uint32_t g = 0; g < groups; ++g) {
    minima[g] = 0;
    switch (type) {
      case BlockType::q2_k:
        scales[g] = d * static_cast<float>(byte_at(at, g) & 15U);
        minima[g] = m * static_cast<float>(byte_at(at, g) >> 4U);
        break;
      case BlockType::q3_k:
        scales[g] = d * static_cast<float>(q3_k_scale(at + 96, g));
        break;
      case BlockType::q4_k:
      case BlockType::q5_k:
        scales[g] = d * static_cast<float>(k_scale(at + 4, g));
        minima[g] = m * static_cast<float>(k_minimum(at + 4, g));
        break;
      case BlockType::q6_k:
        scales[g] = d * static_cast<float>(static_cast<std::int8_t>(byte_at(at, 192 + g)));
        break;
      case BlockType::iq4_xs:
        scales[g] = d * static_cast<float>(iq4_xs_scale(at, g));
        break;
      case BlockType::mxfp4:
        scales[g] = half_power(byte_at(at, 0));
        break;
      default:
        scales[g] = d;
        minima[g] = -m;
    }
  }
}

}  // namespace detail

/// All weights of a block.
FERRY_HD inline void unpack_block(BlockType type, const std::byte* at, float* to) noexcept {
  if (type == BlockType::fp8) {
    const float d = detail::widen<FloatType::f32>(at);
    for (std::uint32_t i = 0; i < 128; ++i) to[i] = d * detail::widen_e4m3(detail::byte_at(at, 4 + i));
    return;
  }
  std::int8_t q[256];
  float scales[16], minima[16];
  detail::block_numbers(type, at, q);
  detail::block_scales(type, at, scales, minima);
  const std::uint32_t each = detail::group_weights(type);
  for (std::uint32_t i = 0; i < block_weights(type); ++i) to[i] = scales[i / each] * static_cast<float>(q[i]);
  if (!detail::has_minima(type)) return;
  for (std::uint32_t i = 0; i < block_weights(type); ++i) to[i] -= minima[i / each];
}

/// `count` weights of a row, from column `first` on, which begins a block. O(count).
FERRY_HD inline void unpack_columns(const BlockLayout& m, const std::byte* packed, std::uint32_t row,
                                    std::uint32_t first, std::uint32_t count, float* weights) noexcept {
  const std::uint32_t each = block_weights(m.type);
  const std::byte* at = packed + row * m.row_bytes() + std::uint64_t{first / each} * block_bytes(m.type);
  std::uint32_t i = 0;
  for (; i + each <= count; i += each, at += block_bytes(m.type)) unpack_block(m.type, at, weights + i);
  if (i == count) return;
  float last[256];
  unpack_block(m.type, at, last);
  for (std::uint32_t j = 0; i < count; ++i, ++j) weights[i] = last[j];
}

/// One row: writes m.columns weights.
FERRY_HD inline void unpack_row(const BlockLayout& m, const std::byte* packed, std::uint32_t row,
                                float* weights) noexcept {
  unpack_columns(m, packed, row, 0, m.columns, weights);
}

/// One weight, O(block).
FERRY_HD inline float unpack_weight(const BlockLayout& m, const std::byte* packed, std::uint32_t row,
                                    std::uint32_t column) noexcept {
  const std::uint32_t each = block_weights(m.type);
  float block[256];
  unpack_block(m.type, packed + row * m.row_bytes() + std::uint64_t{column / each} * block_bytes(m.type), block);
  return block[column % each];
}

}  // namespace ferry::inline FERRY_ABI
