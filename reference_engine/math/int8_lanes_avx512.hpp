// The vocabulary of AVX-512 F, BW and VNNI for activations of 8 bits; the file that includes this provides
// the same as for lanes_avx512.hpp.
#pragma once
#include "math/int8_kernel.hpp"
#include "math/lanes_avx512.hpp"

namespace ferry::engine {
namespace {

struct Avx512Int8Lanes : Avx512Lanes {
  using Ints = __m512i;
  using Bytes = __m512i;
  static constexpr std::uint32_t int8_rows = 8;  // 16 sums, 8 of floats, codes and activations of 32 registers

  static constexpr std::uint32_t dwords = stretch_columns / 4;

  template <std::uint32_t bits, bool halves>
  static constexpr float bias(Codes<bits, halves> /*format*/) {
    return 0;
  }
  template <BlockType type>
  static constexpr float bias(Blocks<type> /*format*/) {
    return static_cast<float>(-centre_of(type));
  }
  FERRY_INLINE Ints no_ints() { return _mm512_setzero_si512(); }
  FERRY_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  FERRY_INLINE Vector to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  FERRY_INLINE void store_any(Vector v, float* at) { _mm512_storeu_ps(at, v); }

  // A stretch's bytes are repeated and shifted. Where a stretch has two groups, the codes of the first are in the lower half.
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<8, halves> /*format*/, const std::byte* at, Bytes& to) {
    to = _mm512_loadu_si512(at);
  }
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<4, halves> /*format*/, const std::byte* at, Bytes& to) {
    const __m256i once = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    Bytes codes = _mm512_broadcast_i64x4(once);
    if constexpr (halves) codes = _mm512_shuffle_i32x4(codes, codes, 0b01010000);
    const Bytes shifts = halves ? _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4) : _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    to = _mm512_and_si512(_mm512_srlv_epi64(codes, shifts), _mm512_set1_epi32(0x0f0f0f0f));
  }
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<2, halves> /*format*/, const std::byte* at, Bytes& to) {
    Bytes codes = repeat<16>(at);
    if constexpr (halves) codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1), codes);
    const Bytes shifts = halves ? _mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6) : _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6);
    to = _mm512_and_si512(_mm512_srlv_epi64(codes, shifts), _mm512_set1_epi32(0x03030303));
  }
  static ColumnOrder order_int8(const PackedLayout& w) {
    ColumnOrder order = natural_order();
    if (w.bits == 8) return order;
    const std::uint32_t each = 8 / w.bits, parts = w.group < stretch_columns ? 2 : 1;
    const std::uint32_t columns = stretch_columns / parts, bytes = columns / each;  // of a part
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      const std::uint32_t in_part = i % columns;
      order.column[i] = static_cast<std::uint8_t>(i / columns * columns + in_part % bytes * each + in_part / bytes);
    }
    return order;
  }

  // Blocks, in the order of columns.
  static ColumnOrder order_int8() { return natural_order(); }

  /// 32 bytes twice, shifted to the right: the lower ones by `low` bits, the upper ones by `high`.
  FERRY_INLINE Bytes shifted(const std::byte* at, std::uint32_t low, std::uint32_t high) {
    const auto by = [](std::uint32_t bits) { return static_cast<std::int64_t>(bits); };
    return _mm512_srlv_epi64(
        repeat<32>(at), _mm512_setr_epi64(by(low), by(low), by(low), by(low), by(high), by(high), by(high), by(high)));
  }
  FERRY_INLINE Bytes masked(Bytes v, std::uint32_t bits) {
    return _mm512_and_si512(v, _mm512_set1_epi32(static_cast<std::int32_t>(bits * 0x01010101U)));
  }
  /// The 4-bit codes of twice 32 columns, of which the first 16 each are in the low bits of as many bytes.
  FERRY_INLINE Bytes fours(__m128i first, __m128i second) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_broadcastsi128_si256(first)),
                                            _mm256_broadcastsi128_si256(second), 1);
    return masked(_mm512_srlv_epi64(both, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), 15);
  }
  FERRY_INLINE __m256i bytes32(const std::byte* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  template <BlockType type>
  FERRY_INLINE Bytes fours(const std::byte* at) {
    return fours(bytes16(at + block_bytes(type) - 16), bytes16(at + 2 * block_bytes(type) - 16));
  }
  FERRY_INLINE Bytes look_up_bytes(__m128i table, Bytes codes) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
  }
  FERRY_INLINE __m128i iq4_bytes() {
    const auto byte = [](std::uint32_t code) { return static_cast<char>(detail::iq4_value(code) + 128); };
    return _mm_setr_epi8(byte(0), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7), byte(8), byte(9),
                         byte(10), byte(11), byte(12), byte(13), byte(14), byte(15));
  }
  template <BlockType type>
  FERRY_INLINE void unpack_bytes(Blocks<type> /*format*/, const std::byte* at, std::uint32_t stretch, Bytes& to) {
    using enum BlockType;
    [[maybe_unused]] const std::uint32_t two = stretch % 2 * 4, part = 2 * stretch;
    if constexpr (type == q8_0) {
      to = _mm512_inserti64x4(_mm512_castsi256_si512(bytes32(at + 2)), bytes32(at + block_bytes(type) + 2), 1);
      to = _mm512_xor_si512(to, _mm512_set1_epi32(static_cast<std::int32_t>(0x80808080)));
    } else if constexpr (type == q4_0 || type == q4_1) {
      to = fours<type>(at);
    } else if constexpr (type == q5_0 || type == q5_1) {
      const std::uint64_t second = detail::word_at(at + 2 * block_bytes(type) - 20);
      const __mmask64 fifths = second << 32U | detail::word_at(at + block_bytes(type) - 20);
      to = _mm512_or_si512(fours<type>(at), _mm512_maskz_set1_epi8(fifths, 16));
    } else if constexpr (type == iq4_nl) {
      to = look_up_bytes(iq4_bytes(), fours<type>(at));
    } else if constexpr (type == iq4_xs) {
      const std::byte* own = at + 8 + stretch * 32;
      to = look_up_bytes(iq4_bytes(), fours(bytes16(own), bytes16(own + 16)));
    } else if constexpr (type == mxfp4) {
      to = look_up_bytes(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), fours<type>(at));
    } else if constexpr (type == q2_k) {
      to = masked(shifted(at + 16 + stretch / 2 * 32, two, two + 2), 3);
    } else if constexpr (type == q3_k) {
      const Bytes third = masked(shifted(at, part, part + 1), 1);
      to = _mm512_or_si512(masked(shifted(at + 32 + stretch / 2 * 32, two, two + 2), 3), _mm512_slli_epi64(third, 2));
    } else if constexpr (type == q4_k) {
      to = masked(shifted(at + 16 + stretch * 32, 0, 4), 15);
    } else if constexpr (type == q5_k) {
      const Bytes fifth = masked(shifted(at + 16, part, part + 1), 1);
      to = _mm512_or_si512(masked(shifted(at + 48 + stretch * 32, 0, 4), 15), _mm512_slli_epi64(fifth, 4));
    } else {
      static_assert(type == q6_k);
      const Bytes high = masked(shifted(at + 128 + stretch / 2 * 32, two, two + 2), 3);
      const Bytes low = masked(_mm512_srli_epi64(_mm512_loadu_si512(at + stretch / 2 * 64), two), 15);
      to = _mm512_or_si512(low, _mm512_slli_epi64(high, 4));
    }
  }

  /// Scales of a block, and where it has them minima, as bytes: 16, or 8.
  template <BlockType type>
  FERRY_INLINE __m128i scale_bytes(const std::byte* at) {
    using enum BlockType;
    if constexpr (type == q2_k) return bytes16(at);
    if constexpr (type == q3_k) return q3_k_scales(at);
    if constexpr (type == q4_k || type == q5_k) return k_scales_and_minima(at);
    if constexpr (type == q6_k) return bytes16(at + 192);
    if constexpr (type == iq4_xs) return _mm512_cvtepi32_epi8(iq4_xs_scales(at));
  }
  FERRY_INLINE void put_floats(Vector v, std::int32_t (&to)[16]) { store(v, reinterpret_cast<float*>(to)); }
  /// The scales of each group of 16 blocks, and behind them the group's minima.
  template <BlockType type>
  FERRY_INLINE void set_scales(Blocks<type> /*format*/, const std::byte* const (&units)[16], std::int32_t (*to)[16]) {
    using enum BlockType;
    constexpr std::uint32_t groups = Blocks<type>::stretches * int8_groups<Blocks<type>>;
    constexpr std::uint32_t half_at = type == q2_k ? 80 : type == q3_k ? 108 : type == q6_k ? 208 : 0;
    std::uint16_t d_bits[16], m_bits[16] = {};
    for (std::uint32_t o = 0; o < 16; ++o) {
      std::memcpy(&d_bits[o], units[o] + half_at, sizeof(d_bits[0]));
      if constexpr (has_minima<type>) std::memcpy(&m_bits[o], units[o] + half_at + 2, sizeof(m_bits[0]));
    }
    Bytes four[4];  // number i has those of outputs i, 4 + i, 8 + i and 12 + i
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {
      Bytes own = _mm512_castsi128_si512(scale_bytes<type>(units[i]));
      own = _mm512_inserti32x4(own, scale_bytes<type>(units[4 + i]), 1);
      own = _mm512_inserti32x4(own, scale_bytes<type>(units[8 + i]), 2);
      four[i] = _mm512_inserti32x4(own, scale_bytes<type>(units[12 + i]), 3);
    }
    const Bytes a = _mm512_unpacklo_epi8(four[0], four[1]), b = _mm512_unpacklo_epi8(four[2], four[3]);
    const Bytes c = _mm512_unpackhi_epi8(four[0], four[1]), e = _mm512_unpackhi_epi8(four[2], four[3]);
    const Bytes of_four[4] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b), _mm512_unpacklo_epi16(c, e),
                              _mm512_unpackhi_epi16(c, e)};  // numbers; in each quarter of four outputs
    const Vector d = widen_halves(d_bits), m = _mm512_sub_ps(zero(), widen_halves(m_bits));
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Bytes together =
          _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), of_four[i]);
      const __m128i each[4] = {_mm512_castsi512_si128(together), _mm512_extracti32x4_epi32(together, 1),
                               _mm512_extracti32x4_epi32(together, 2), _mm512_extracti32x4_epi32(together, 3)};
#pragma GCC unroll 4
      for (std::uint32_t j = 0; j < 4; ++j) {
        const std::uint32_t number = 4 * i + j;
        if constexpr (type == q2_k) {
          const Ints both = _mm512_cvtepu8_epi32(each[j]);
          put_floats(multiply(d, to_floats(_mm512_and_si512(both, _mm512_set1_epi32(15)))), to[2 * number]);
          put_floats(multiply(m, to_floats(_mm512_srli_epi32(both, 4))), to[2 * number + 1]);
        } else if (number < groups) {
          put_floats(multiply(d, to_floats(_mm512_cvtepi8_epi32(each[j]))), to[2 * number]);
          if constexpr (!has_minima<type>) put_floats(zero(), to[2 * number + 1]);
        } else if constexpr (has_minima<type>) {
          put_floats(multiply(m, to_floats(_mm512_cvtepi8_epi32(each[j]))), to[2 * (number - groups) + 1]);
        }
      }
    }
  }
  FERRY_INLINE Vector widen_halves(const std::uint16_t (&from)[lanes]) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  template <class Format>
  FERRY_INLINE Ints dot(Format /*format*/, Bytes codes, const std::int8_t* x) {
    return _mm512_dpbusd_epi32(no_ints(), codes, _mm512_load_si512(x));
  }
  /// The sums of outputs 0 to 15, over the lower eight lanes and over the upper.
  FERRY_INLINE void add_up(const Ints (&s)[16], Ints (&parts)[2]) {
    Ints quarters[4];
    add_fours(s, quarters);
    const Ints a = halves_of(quarters[0], quarters[1]), b = halves_of(quarters[2], quarters[3]);
    parts[0] = _mm512_shuffle_i32x4(a, b, 0b10001000);
    parts[1] = _mm512_shuffle_i32x4(a, b, 0b11011101);
  }
  /// Over four lanes each.
  FERRY_INLINE void add_up(const Ints (&s)[16], Ints (&parts)[4]) {
    Ints quarters[4];
    add_fours(s, quarters);
    const Ints a = _mm512_shuffle_i32x4(quarters[0], quarters[1], 0b10001000);
    const Ints b = _mm512_shuffle_i32x4(quarters[0], quarters[1], 0b11011101);
    const Ints c = _mm512_shuffle_i32x4(quarters[2], quarters[3], 0b10001000);
    const Ints d = _mm512_shuffle_i32x4(quarters[2], quarters[3], 0b11011101);
    parts[0] = _mm512_shuffle_i32x4(a, c, 0b10001000);
    parts[1] = _mm512_shuffle_i32x4(b, d, 0b10001000);
    parts[2] = _mm512_shuffle_i32x4(a, c, 0b11011101);
    parts[3] = _mm512_shuffle_i32x4(b, d, 0b11011101);
  }
  /// Vectors of the sums over four lanes, of four outputs each.
  FERRY_INLINE void add_fours(const Ints (&s)[16], Ints (&quarters)[4]) {
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Ints a = pairs(s[4 * i], s[4 * i + 1]), b = pairs(s[4 * i + 2], s[4 * i + 3]);
      quarters[i] = add(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
  }
  FERRY_INLINE Ints pairs(Ints a, Ints b) {
    return add(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
  FERRY_INLINE Ints halves_of(Ints a, Ints b) {
    return add(_mm512_shuffle_i32x4(a, b, 0b10001000), _mm512_shuffle_i32x4(a, b, 0b11011101));
  }

  /// Four bytes of each output to a vector: `to` is [16 vectors, 16 outputs, 4].
  FERRY_INLINE void transpose(const Bytes (&from)[16], std::byte* to) {
    Bytes of_four[4][4];  // four outputs each; vector c has four bytes c, 4 + c, 8 + c, 12 + c of them
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Bytes a = _mm512_unpacklo_epi32(from[4 * i], from[4 * i + 1]);
      const Bytes b = _mm512_unpackhi_epi32(from[4 * i], from[4 * i + 1]);
      const Bytes c = _mm512_unpacklo_epi32(from[4 * i + 2], from[4 * i + 3]);
      const Bytes d = _mm512_unpackhi_epi32(from[4 * i + 2], from[4 * i + 3]);
      of_four[i][0] = _mm512_unpacklo_epi64(a, c);
      of_four[i][1] = _mm512_unpackhi_epi64(a, c);
      of_four[i][2] = _mm512_unpacklo_epi64(b, d);
      of_four[i][3] = _mm512_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (std::uint32_t c = 0; c < 4; ++c) {
      const Bytes even = _mm512_shuffle_i32x4(of_four[0][c], of_four[1][c], 0b10001000);
      const Bytes odd = _mm512_shuffle_i32x4(of_four[0][c], of_four[1][c], 0b11011101);
      const Bytes more_even = _mm512_shuffle_i32x4(of_four[2][c], of_four[3][c], 0b10001000);
      const Bytes more_odd = _mm512_shuffle_i32x4(of_four[2][c], of_four[3][c], 0b11011101);
      put(_mm512_shuffle_i32x4(even, more_even, 0b10001000), to, c);
      put(_mm512_shuffle_i32x4(odd, more_odd, 0b10001000), to, 4 + c);
      put(_mm512_shuffle_i32x4(even, more_even, 0b11011101), to, 8 + c);
      put(_mm512_shuffle_i32x4(odd, more_odd, 0b11011101), to, 12 + c);
    }
  }
  FERRY_INLINE void transpose_ints(const Ints (&from)[16], std::int32_t* to) {
    transpose(from, reinterpret_cast<std::byte*>(to));
  }
  FERRY_INLINE Ints load_ints(const std::int32_t* at) {
    return _mm512_load_si512(at);
  }
  FERRY_INLINE Ints load_any_ints(const std::byte* at) {
    return _mm512_loadu_si512(at);
  }
  FERRY_INLINE void put(Bytes v, std::byte* to, std::uint32_t number) {
    _mm512_store_si512(to + std::size_t{number} * 64, v);
  }

  /// Adds the products of quarters `first` to `end` - 1 of a stretch with rows of x.
  template <class Format, std::uint32_t rows>
  FERRY_INLINE void dot_side_by_side(Format /*format*/, const std::byte* codes, std::uint32_t first, std::uint32_t end,
                                     const Int8Rows::Chunk* x, std::uint32_t stretch, Ints (&sums)[rows]) {
#pragma GCC unroll 2
    for (std::uint32_t i = first * (dwords / 4); i < end * (dwords / 4); ++i) {
      const Bytes own = _mm512_load_si512(codes + std::size_t{i} * 64);
#pragma GCC unroll 8
      for (std::uint32_t r = 0; r < rows; ++r) {
        std::int32_t four;
        std::memcpy(&four, x[r].values[stretch] + std::size_t{i} * 4, sizeof(four));
        sums[r] = _mm512_dpbusd_epi32(sums[r], own, _mm512_set1_epi32(four));
      }
    }
  }
};

}  // namespace
}  // namespace ferry::engine
