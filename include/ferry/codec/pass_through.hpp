/// @file
/// Matrices in the types that checkpoints have, as they are: bfloat16, binary16, float32.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "ferry/codec/packed.hpp"  // no_weight
#include "ferry/error.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// The floating-point types that checkpoints have.
enum class FloatType : std::uint8_t {
  bf16,  ///< the upper half of a float32: 1 sign, 8 exponent, 7 fraction bits
  f16,   ///< IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits
  f32    ///< float32 itself
};

/// How a matrix [rows, columns] lies in memory in the type that it came in: row-major, little-endian, nothing in
/// between and nothing behind it. May lie at any address.
///
/// Every float of a narrower type is a float32 too: weights come back as they were stored, bit for bit.
struct PassThroughLayout {
  /// Of the matrix.
  std::uint32_t rows = 0, columns = 0;
  FloatType type = FloatType::bf16;  ///< of each weight

  /// Throws ConfigError unless rows and columns are not 0, and there are at most 2^60 weights.
  void validate() const {
    if (rows == 0 || columns == 0 || std::uint64_t{rows} * columns > std::uint64_t{1} << 60U) {
      detail::fail<ConfigError>("PassThroughLayout: the matrix is " + std::to_string(rows) + " x " +
                                std::to_string(columns) + ", expected 1 to 2^60 weights");
    }
  }

  /// Bytes of one weight.
  [[nodiscard]] FERRY_HD constexpr std::uint32_t weight_bytes() const noexcept {
    return type == FloatType::f32 ? 4 : 2;
  }
  /// Bytes of one row.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t row_bytes() const noexcept {
    return std::uint64_t{columns} * weight_bytes();
  }
  /// Bytes of the matrix.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t bytes() const noexcept { return rows * row_bytes(); }
};

namespace detail {

template <class To, class From>
FERRY_HD inline To same_bits(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

FERRY_HD inline float widen_bf16(std::uint16_t bits) noexcept {
  return same_bits<float>(std::uint32_t{bits} << 16U);
}

FERRY_HD inline float widen_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16U, exponent = bits >> 10U & 31U, fraction = bits & 1023U;
  std::uint32_t magnitude = (exponent + 112) << 23U | fraction << 13U;  // 112: the biases differ by 127 - 15
  if (exponent == 31) magnitude = 0x7f800000U | fraction << 13U;
  if (exponent == 0) magnitude = same_bits<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  return same_bits<float>(sign | magnitude);
}

/// The bits of the nearest value of the type, ties to the even one. The weight is finite; the result may be infinite.
FERRY_HD inline std::uint16_t narrow_bf16(float weight) noexcept {
  const auto bits = same_bits<std::uint32_t>(weight);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

FERRY_HD inline std::uint16_t narrow_f16(float weight) noexcept {
  const auto bits = same_bits<std::uint32_t>(weight);
  const std::uint32_t magnitude = bits & 0x7fffffffU, sign = bits >> 16U & 0x8000U;
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65536 and more
  if (magnitude < 0x38800000U) {
    // Below 2^-14 a step is 2^-24, as that of float32 is from 1/2 to 1: the addition rounds.
    const float rounded = same_bits<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (same_bits<std::uint32_t>(rounded) - 0x3f000000U));
  }
  const std::uint32_t rebiased = magnitude - (112U << 23U);
  return static_cast<std::uint16_t>(sign | (rebiased + 0xfffU + (rebiased >> 13U & 1U)) >> 13U);
}

// The type is known to the compiler here: this runs over every weight that is read.
template <FloatType type>
FERRY_HD inline float widen(const std::byte* at) noexcept {
  if constexpr (type == FloatType::f32) {
    float weight;
    std::memcpy(&weight, at, sizeof(weight));
    return weight;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return type == FloatType::bf16 ? widen_bf16(bits) : widen_f16(bits);
  }
}

template <FloatType type>
FERRY_HD inline void widen(const std::byte* from, std::uint32_t count, float* weights) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    weights[i] = widen<type>(from + std::size_t{i} * (type == FloatType::f32 ? 4 : 2));
  }
}

}  // namespace detail

/// `count` weights of a row, from column `first` on.
FERRY_HD inline void unpack_columns(const PassThroughLayout& m, const std::byte* packed, std::uint32_t row,
                                    std::uint32_t first, std::uint32_t count, float* weights) noexcept {
  packed += row * m.row_bytes() + std::uint64_t{first} * m.weight_bytes();
  if (m.type == FloatType::bf16) {
    detail::widen<FloatType::bf16>(packed, count, weights);
  } else if (m.type == FloatType::f16) {
    detail::widen<FloatType::f16>(packed, count, weights);
  } else {
    detail::widen<FloatType::f32>(packed, count, weights);
  }
}

/// One weight, O(1).
FERRY_HD inline float unpack_weight(const PassThroughLayout& m, const std::byte* packed, std::uint32_t row,
                                    std::uint32_t column) noexcept {
  float weight = 0;
  unpack_columns(m, packed, row, column, 1, &weight);
  return weight;
}

/// One row: writes m.columns weights.
FERRY_HD inline void unpack_row(const PassThroughLayout& m, const std::byte* packed, std::uint32_t row,
                                float* weights) noexcept {
  unpack_columns(m, packed, row, 0, m.columns, weights);
}

/// Packs weights [rows, columns], row-major, into m.bytes() bytes, each as the nearest value, ties to the even one.
/// What the type can hold comes back unchanged. Throws ConfigError for a malformed layout.
///
/// Returns no_weight; or, if a weight is NaN or infinite, or would be infinite in that type, its index (the first
/// one's), with `to` half written.
[[nodiscard]] inline std::size_t pack(PassThroughLayout m, const float* weights, std::byte* to) {
  m.validate();
  const std::size_t count = std::size_t{m.rows} * m.columns;
  for (std::size_t i = 0; i < count; ++i) {
    if (!std::isfinite(weights[i])) return i;
    std::byte* at = to + i * m.weight_bytes();
    if (m.type == FloatType::f32) {
      std::memcpy(at, &weights[i], sizeof(float));
      continue;
    }
    const bool bf16 = m.type == FloatType::bf16;
    const std::uint16_t bits = bf16 ? detail::narrow_bf16(weights[i]) : detail::narrow_f16(weights[i]);
    if (!std::isfinite(bf16 ? detail::widen_bf16(bits) : detail::widen_f16(bits))) return i;
    std::memcpy(at, &bits, sizeof(bits));
  }
  return no_weight;
}

}  // namespace ferry::inline FERRY_ABI
