/// @file
/// Matrices at 8, 4 or 2 bits a weight: groups of weights rounded to the nearest of evenly spaced values.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ferry/model.hpp"

namespace ferry::engine {

/// How a matrix [rows, columns] lies in memory at low precision.
///
/// Each row is cut into groups of 64 adjacent columns; the last one may be shorter. A group has two float32, `scale`
/// and `minimum`, and each of its weights a code q from 0 to 2^bits - 1, which stands for minimum + q * scale, computed
/// in double and rounded to float (the product is exact in double: a fused multiply-add gives the same).
///
///   codes   [rows, row_bytes()]                   each row from its first weight on, lowest bits of a byte first
///   groups  [rows, row_groups()] {scale, minimum}
///
/// One array behind the other, little-endian, each filled up with zeros to a multiple of 64 bytes.
struct QuantizedLayout {
  std::uint32_t rows = 0, columns = 0;
  std::uint32_t bits = 8;  ///< 8, 4 or 2

  static constexpr std::uint32_t group = 64;  ///< weights; their codes fill whole bytes

  [[nodiscard]] std::uint64_t row_bytes() const { return (std::uint64_t{columns} * bits + 7) / 8; }
  [[nodiscard]] std::uint64_t row_groups() const { return (std::uint64_t{columns} + group - 1) / group; }
  [[nodiscard]] std::uint64_t groups_at() const { return filled(rows * row_bytes()); }
  [[nodiscard]] std::uint64_t bytes() const { return groups_at() + filled(rows * row_groups() * 2 * sizeof(float)); }

 private:
  static std::uint64_t filled(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }
};

/// Bits of a code; int8, int4, int2 only.
constexpr std::uint32_t code_bits(Precision p) {
  return p == Precision::int8 ? 8 : p == Precision::int4 ? 4 : 2;
}

/// Writes `layout.bytes()` bytes. weights: [rows, columns], row-major.
///
/// minimum = the least weight, scale = (largest - least) / (2^bits - 1), q = (w - minimum) / scale rounded to the
/// nearest, halves up. A group of equal weights has scale 0 and is exact. A group with a NaN or an infinity becomes NaN
/// as a whole, so that the damage shows.
void quantize(const QuantizedLayout& layout, const float* weights, std::byte* to);

/// Reads `layout.bytes()` bytes, whatever they are. weights: [rows, columns], row-major.
void dequantize(const QuantizedLayout& layout, const std::byte* from, float* weights);

}  // namespace ferry::engine
