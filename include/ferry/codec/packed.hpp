/// @file
/// Matrices at 8, 4 or 2 bits a weight: how groups of codes lie packed, and how they are read.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "ferry/error.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

static_assert(std::endian::native == std::endian::little, "packed matrices are little-endian");
static_assert(std::numeric_limits<float>::is_iec559, "codes stand for IEEE floats");

/// Bits of a code; int8, int4, int2 only.
FERRY_HD constexpr std::uint32_t code_bits(Precision p) noexcept {
  return p == Precision::int8 ? 8 : p == Precision::int4 ? 4 : 2;
}

/// The largest code of so many bits.
FERRY_HD constexpr std::uint32_t largest_code(std::uint32_t bits) noexcept {
  return (1U << bits) - 1;
}

/// What the codes of a group stand for: evenly spaced values from `minimum` on.
///
/// The literature writes (q - z) * scale with a zero point z. Here z = -minimum / scale is any real number, neither
/// rounded to an integer nor held between 0 and the largest code. `minimum` in its place is exact for a group of equal
/// weights, whose scale is 0.
struct PackedGroup {
  /// A weight is code * scale + minimum.
  float scale = 0, minimum = 0;

  /// minimum + code * scale, rounded once from double to float. The product is exact in double: a fused multiply-add,
  /// on whichever processor, gives the same.
  [[nodiscard]] FERRY_HD float weight(std::uint32_t code) const noexcept {
    return static_cast<float>(static_cast<double>(minimum) + code * static_cast<double>(scale));
  }
  /// The code that stands for the value nearest to `weight`, halves up.
  [[nodiscard]] FERRY_HD std::uint32_t code(float weight, std::uint32_t bits) const noexcept {
    if (scale == 0) return 0;
    const double steps = (static_cast<double>(weight) - static_cast<double>(minimum)) / static_cast<double>(scale);
    if (!(steps > 0)) return 0;
    return steps < largest_code(bits) ? static_cast<std::uint32_t>(steps + 0.5) : largest_code(bits);
  }
};

/// How a matrix [rows, columns] lies in memory at low precision.
///
/// Each row is cut into groups of `group` adjacent columns; the last one may be shorter. A group has two float32
/// (PackedGroup::scale and PackedGroup::minimum), and each of its weights a code of `bits` bits, from 0 to 2^bits - 1.
///
///   codes   [rows, row_bytes()]                   each row from its first weight on, lowest bits of a byte first
///   groups  [rows, row_groups()] {scale, minimum}
///
/// One array behind the other, little-endian, each filled up with zeros to a multiple of 64 bytes. A packed matrix may
/// lie at any address. A weight takes bits + 64 / group bits: 4.5 at 4 bits in groups of 128, 5 in groups of 64.
struct PackedLayout {
  /// Of the matrix.
  std::uint32_t rows = 0, columns = 0;
  std::uint32_t bits = 8;    ///< of a code: 8, 4 or 2
  std::uint32_t group = 64;  ///< weights: 32, 64 or 128; their codes fill whole bytes

  /// Throws ConfigError unless sizes are as above, rows and columns are not 0, and there are at most 2^60 weights.
  void validate() const {
    auto refuse = [](const std::string& what) { detail::fail<ConfigError>("PackedLayout: " + what); };
    if (rows == 0 || columns == 0 || std::uint64_t{rows} * columns > std::uint64_t{1} << 60U) {
      refuse("the matrix is " + std::to_string(rows) + " x " + std::to_string(columns) +
             ", expected 1 to 2^60 weights");
    }
    if (bits != 8 && bits != 4 && bits != 2) refuse("bits is " + std::to_string(bits) + ", expected 8, 4 or 2");
    if (group != 32 && group != 64 && group != 128) {
      refuse("group is " + std::to_string(group) + ", expected 32, 64 or 128");
    }
  }

  /// Bytes of the codes of one row.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t row_bytes() const noexcept {
    return (std::uint64_t{columns} * bits + 7) / 8;
  }
  /// Groups of one row.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t row_groups() const noexcept {
    return (std::uint64_t{columns} + group - 1) / group;
  }
  /// Byte at which the codes of group `g` of a row begin.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t codes_at(std::uint32_t row, std::uint32_t g) const noexcept {
    return row * row_bytes() + std::uint64_t{g} * group * bits / 8;
  }
  /// Byte at which the scale and minimum of group `g` of a row begin.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t group_at(std::uint32_t row, std::uint32_t g) const noexcept {
    return filled(rows * row_bytes()) + (row * row_groups() + g) * sizeof(PackedGroup);
  }
  /// Weights of group `g` of each row.
  [[nodiscard]] FERRY_HD constexpr std::uint32_t group_size(std::uint32_t g) const noexcept {
    return columns - g * group < group ? columns - g * group : group;
  }
  /// Bytes of the matrix: codes, scales and minimums.
  [[nodiscard]] FERRY_HD constexpr std::uint64_t bytes() const noexcept {
    return filled(rows * row_bytes()) + filled(rows * row_groups() * sizeof(PackedGroup));
  }

 private:
  FERRY_HD static constexpr std::uint64_t filled(std::uint64_t bytes) noexcept { return (bytes + 63) / 64 * 64; }
};

/// Code number `i` behind `codes`.
FERRY_HD inline std::uint32_t unpack_code(const std::byte* codes, std::uint32_t i, std::uint32_t bits) noexcept {
  const std::uint32_t per_byte = 8 / bits;
  return static_cast<std::uint32_t>(codes[i / per_byte]) >> i % per_byte * bits & largest_code(bits);
}

/// Sets code number `i`, at most the largest; its neighbours in the byte stay. Not from two threads in one byte.
FERRY_HD inline void pack_code(std::byte* codes, std::uint32_t i, std::uint32_t bits, std::uint32_t code) noexcept {
  const std::uint64_t bit = std::uint64_t{i} * bits, shift = bit % 8;
  std::byte& byte = codes[bit / 8];
  const std::uint32_t others = static_cast<std::uint32_t>(byte) & ~(largest_code(bits) << shift);
  byte = static_cast<std::byte>(others | code << shift);
}

/// Scale and minimum of group `g` of a row.
FERRY_HD inline PackedGroup read_group(const PackedLayout& m, const std::byte* packed, std::uint32_t row,
                                       std::uint32_t g) noexcept {
  PackedGroup group;
  std::memcpy(&group, packed + m.group_at(row, g), sizeof(group));
  return group;
}

/// One weight, O(1).
FERRY_HD inline float unpack_weight(const PackedLayout& m, const std::byte* packed, std::uint32_t row,
                                    std::uint32_t column) noexcept {
  const std::uint32_t g = column / m.group;
  return read_group(m, packed, row, g).weight(unpack_code(packed + m.codes_at(row, g), column % m.group, m.bits));
}

namespace detail {

// The width is known to the compiler here: this runs over every weight that is read.
template <std::uint32_t bits>
FERRY_HD inline void unpack_codes(const PackedGroup& g, const std::byte* codes, std::uint32_t count,
                                  float* weights) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) weights[i] = g.weight(unpack_code(codes, i, bits));
}

}  // namespace detail

/// The weights of group `g` of a row: writes m.group_size(g).
FERRY_HD inline void unpack_group(const PackedLayout& m, const std::byte* packed, std::uint32_t row, std::uint32_t g,
                                  float* weights) noexcept {
  const PackedGroup group = read_group(m, packed, row, g);
  const std::byte* codes = packed + m.codes_at(row, g);
  const std::uint32_t count = m.group_size(g);
  if (m.bits == 8) {
    detail::unpack_codes<8>(group, codes, count, weights);
  } else if (m.bits == 4) {
    detail::unpack_codes<4>(group, codes, count, weights);
  } else {
    detail::unpack_codes<2>(group, codes, count, weights);
  }
}

/// One row, whatever its bytes are: writes m.columns weights.
FERRY_HD inline void unpack_row(const PackedLayout& m, const std::byte* packed, std::uint32_t row,
                                float* weights) noexcept {
  for (std::uint32_t g = 0; g < m.row_groups(); ++g) {
    unpack_group(m, packed, row, g, weights + std::uint64_t{g} * m.group);
  }
}

/// What packing returns where nothing was wrong: no index of a weight.
inline constexpr std::size_t no_weight = ~std::size_t{0};

namespace detail {

/// PackedGroup::code of each weight, without branches: this runs over every weight that is packed.
inline void codes_of(const PackedGroup& g, View<const float> weights, std::uint32_t bits,
                     std::uint8_t* codes) noexcept {
  const double minimum = static_cast<double>(g.minimum);
  const double scale = g.scale == 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(g.scale);
  const double most = largest_code(bits);
  for (std::uint32_t i = 0; i < weights.size; ++i) {
    double steps = (static_cast<double>(weights[i]) - minimum) / scale;
    steps = steps > 0 ? steps : 0;
    steps = steps < most ? steps + 0.5 : most;
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(steps));
  }
}

/// The same bytes as by pack_code, one after another.
template <std::uint32_t bits>
void join_codes(const std::uint8_t* codes, std::uint32_t count, std::byte* to) noexcept {
  constexpr std::uint32_t per_byte = 8 / bits;
  for (std::uint32_t i = 0; i < count / per_byte; ++i) {
    unsigned byte = 0;
    for (std::uint32_t j = 0; j < per_byte; ++j) byte |= static_cast<unsigned>(codes[i * per_byte + j]) << j * bits;
    to[i] = static_cast<std::byte>(byte);
  }
  for (std::uint32_t i = count - count % per_byte; i < count; ++i) pack_code(to, i, bits, codes[i]);
}

inline bool all_finite(View<const float> weights) noexcept {
  bool finite = true;
  for (const float w : weights) finite &= std::abs(w) <= std::numeric_limits<float>::max();
  return finite;
}

}  // namespace detail

/// Packs weights [rows, columns], row-major, into m.bytes() bytes: each group by the PackedGroup that `fit(weights, bits)`
/// returns (RoundToNearest, Hqq), and each weight as its nearest code. Throws ConfigError for a malformed layout.
///
/// Returns no_weight; or, if a weight is NaN or infinite, its index (the first one's), with `to` half written.
template <class Fit>
[[nodiscard]] std::size_t pack(PackedLayout m, const float* weights, std::byte* to, const Fit& fit) {
  m.validate();
  std::memset(to, 0, m.bytes());
  for (std::uint32_t row = 0; row < m.rows; ++row) {
    for (std::uint32_t g = 0; g < m.row_groups(); ++g) {
      const std::size_t first = std::size_t{row} * m.columns + std::size_t{g} * m.group;
      const View<const float> all{weights + first, m.group_size(g)};
      for (std::uint32_t i = 0; !detail::all_finite(all); ++i) {
        if (!std::isfinite(all[i])) return first + i;
      }
      const PackedGroup group = fit(all, m.bits);
      std::memcpy(to + m.group_at(row, g), &group, sizeof(group));
      std::uint8_t codes[128];
      detail::codes_of(group, all, m.bits, codes);
      std::byte* packed = to + m.codes_at(row, g);
      if (m.bits == 8) {
        detail::join_codes<8>(codes, all.size, packed);
      } else if (m.bits == 4) {
        detail::join_codes<4>(codes, all.size, packed);
      } else {
        detail::join_codes<2>(codes, all.size, packed);
      }
    }
  }
  return no_weight;
}

}  // namespace ferry::inline FERRY_ABI
