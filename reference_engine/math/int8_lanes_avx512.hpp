// The vocabulary of AVX-512 F and VNNI for activations of 8 bits; where it comes from is as for lanes_avx512.hpp.
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

  template <class Format>
  static constexpr float bias(Format /*format*/) {
    return 0;
  }
  FERRY_INLINE Ints no_ints() { return _mm512_setzero_si512(); }
  FERRY_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  FERRY_INLINE Vector to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  FERRY_INLINE void store_any(Vector v, float* at) { _mm512_storeu_ps(at, v); }

  // Whole stretches of a group: their bytes several times, shifted. Where a stretch has two groups the first one's codes
  // are in the lower half.
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

  template <class Format>
  FERRY_INLINE Ints dot(Format /*format*/, Bytes codes, const std::int8_t* x) {
    return _mm512_dpbusd_epi32(no_ints(), codes, _mm512_load_si512(x));
  }
  /// Of outputs 0 to 15 each, over the lower and the upper eight lanes.
  FERRY_INLINE void add_up(const Ints (&s)[16], Ints (&parts)[2]) {
    Ints quarters[4];  // of four outputs each: the sums over four lanes
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Ints a = pairs(s[4 * i], s[4 * i + 1]), b = pairs(s[4 * i + 2], s[4 * i + 3]);
      quarters[i] = add(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    }
    const Ints a = halves_of(quarters[0], quarters[1]), b = halves_of(quarters[2], quarters[3]);
    parts[0] = _mm512_shuffle_i32x4(a, b, 0b10001000);
    parts[1] = _mm512_shuffle_i32x4(a, b, 0b11011101);
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

  /// Adds the products of halves `first` to `end` - 1 of a stretch with rows of x.
  template <class Format, std::uint32_t rows>
  FERRY_INLINE void dot_side_by_side(Format /*format*/, const std::byte* codes, std::uint32_t first, std::uint32_t end,
                                     const Int8Rows::Chunk* x, std::uint32_t stretch, Ints (&sums)[rows]) {
#pragma GCC unroll 2
    for (std::uint32_t i = first * (dwords / 2); i < end * (dwords / 2); ++i) {
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
