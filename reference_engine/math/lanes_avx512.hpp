// The vocabulary of AVX-512 F for the kernel of PackedProduct. Where the intrinsics come from, and FERRY_LANES_TARGET, is
// for the file that includes this: a test emulates them.
#pragma once
#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

#define FERRY_INLINE [[FERRY_LANES_TARGET gnu::always_inline]] static

struct Avx512Lanes {
  using Vector = __m512;
  static constexpr std::uint32_t lanes = 16;
  static constexpr std::uint32_t most_rows = 6;       // 24 sums, 6 vectors of x and one of weights of 32 registers
  static constexpr std::uint32_t scaled_outputs = 2;  // 12 sums, 12 of one group
  static constexpr bool one_stream = true;

  FERRY_INLINE Vector zero() { return _mm512_setzero_ps(); }
  FERRY_INLINE Vector all(float value) { return _mm512_set1_ps(value); }
  FERRY_INLINE Vector load(const float* at) { return _mm512_load_ps(at); }
  FERRY_INLINE Vector load_any(const std::byte* at) { return _mm512_loadu_ps(at); }
  FERRY_INLINE void store(Vector v, float* at) { _mm512_store_ps(at, v); }
  FERRY_INLINE Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  FERRY_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }

  FERRY_INLINE void add_lanes(const Vector (&s)[outputs], float (&sum)[outputs]) {
#pragma GCC unroll 4
    for (std::uint32_t o = 0; o < outputs; ++o) sum[o] = add_lanes(s[o]);
  }
  FERRY_INLINE float add_lanes(Vector s) {
    return _mm512_reduce_add_ps(s);
  }

  template <FloatType type>
  FERRY_INLINE void unpack(Floats<type> /*format*/, const std::byte* at, Vector (&to)[4]) {
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < 4; ++v) {
      if constexpr (type == FloatType::f32) {
        to[v] = load_any(at + v * 64);
      } else {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + v * 32));
        to[v] = type == FloatType::f16 ? _mm512_cvtph_ps(halves)
                                       : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
      }
    }
  }

  template <bool halves>
  FERRY_INLINE void unpack(Codes<8, halves> /*format*/, const std::byte* at, Vector (&to)[4]) {
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < 4; ++v) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + v * 16));
      to[v] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
    }
  }
  // A code on top of a float's fraction, under a fixed exponent, is already a float: 1 and a fraction. Lanes have 32 bits of
  // codes each, as they lie in memory, turned so that the last code of each lane is in its place; those before it are
  // shifted there.
  template <std::uint32_t bits, bool halves>
  FERRY_INLINE void unpack(Codes<bits, halves> /*format*/, const std::byte* at, Vector (&to)[4]) {
    constexpr std::uint32_t parts = halves ? 2 : 1, each = 4 / parts;
#pragma GCC unroll 2
    for (std::uint32_t part = 0; part < parts; ++part) {
      const __m512i own = repeat<8 * bits / parts>(at + part * 8 * bits / parts), by = turns<bits, halves>();
      const __m512i codes = _mm512_rolv_epi32(own, by);
#pragma GCC unroll 4
      for (std::uint32_t v = 0; v < each; ++v) {
        const __m512i placed = v + 1 == each ? codes : _mm512_slli_epi32(codes, (each - 1 - v) * bits);
        const __m512i place = _mm512_set1_epi32(bits == 4 ? 0x780000 : 0x600000), one = _mm512_set1_epi32(0x3f800000);
        const __m512i all = _mm512_ternarylogic_epi32(placed, place, one, 0b11101010);  // those bits, or one's
        to[part * each + v] = _mm512_castsi512_ps(all);
      }
    }
  }
  /// So many bytes as often as they fit.
  template <std::uint32_t bytes>
  FERRY_INLINE __m512i repeat(const std::byte* at) {
    if constexpr (bytes == 32) {
      return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    } else if constexpr (bytes == 16) {
      return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    } else {
      std::int64_t once;
      std::memcpy(&once, at, sizeof(once));
      return _mm512_set1_epi64(once);
    }
  }
  /// How far each lane is turned to the left.
  template <std::uint32_t bits, bool halves>
  FERRY_INLINE __m512i turns() {
    if constexpr (bits == 4 && !halves)
      return _mm512_setr_epi32(7, 7, 7, 7, 7, 7, 7, 7, 23, 23, 23, 23, 23, 23, 23, 23);
    if constexpr (bits == 2 && halves)
      return _mm512_setr_epi32(19, 19, 15, 15, 11, 11, 7, 7, 3, 3, 31, 31, 27, 27, 23, 23);
    return _mm512_setr_epi32(15, 15, 15, 15, 7, 7, 7, 7, 31, 31, 31, 31, 23, 23, 23, 23);
  }

  static ColumnOrder order(const PassThroughLayout& /*w*/) {
    return natural_order();
  }
  static ColumnOrder order(const PackedLayout& w) {
    ColumnOrder order = natural_order();
    if (w.bits == 8) return order;
    // As in unpack: a lane has the bits of `each` columns, and each `dwords` lanes have the same ones, turned further.
    const std::uint32_t each = 32 / w.bits, parts = w.group < stretch_columns ? 2 : 1;
    const std::uint32_t dwords = stretch_columns / each / parts, vectors_each = 4 / parts;
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      const std::uint32_t v = i / lanes, lane = i % lanes, part = v / vectors_each;
      const std::uint32_t code = lane / dwords * vectors_each + v % vectors_each;
      order.column[i] = static_cast<std::uint8_t>((part * dwords + lane % dwords) * each + code);
    }
    order.factor = order.bias = w.bits == 4 ? 16 : 4;
    return order;
  }
};

}  // namespace
}  // namespace ferry::engine
