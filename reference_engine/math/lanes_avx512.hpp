// The vocabulary of AVX-512 F for the kernel of PackedProduct. Where the intrinsics come from, and FERRY_LANES_TARGET, is
// for the file that includes this: a test emulates them.
#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

#define FERRY_INLINE [[FERRY_LANES_TARGET gnu::always_inline]] static

struct Avx512Lanes {
  using Vector = __m512;
  static constexpr std::uint32_t lanes = 16;
  static constexpr std::uint32_t most_rows = 6;  // 24 sums, 6 vectors of x and one of weights of 32 registers

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
  // Sixteen floats in a register are a table that four bits choose from.
  template <bool halves>
  FERRY_INLINE void unpack(Codes<4, halves> /*format*/, const std::byte* at, Vector (&to)[4]) {
    const Vector table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i shifts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < 4; ++v) {
      std::int64_t codes;  // of sixteen columns: the first eight are in the even lanes
      std::memcpy(&codes, at + std::size_t{v} * 8, sizeof(codes));
      to[v] = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(codes), shifts), table);
    }
  }
  template <bool halves>
  FERRY_INLINE void unpack(Codes<2, halves> /*format*/, const std::byte* at, Vector (&to)[4]) {
    const Vector table = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    const __m512i shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < 4; ++v) {
      std::int32_t codes;
      std::memcpy(&codes, at + std::size_t{v} * 4, sizeof(codes));
      to[v] = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(codes), shifts), table);
    }
  }

  static ColumnOrder order(const PassThroughLayout& /*w*/) {
    return natural_order();
  }
  static ColumnOrder order(const PackedLayout& w) {
    ColumnOrder order = natural_order();
    if (w.bits != 4) return order;
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      order.column[i] = static_cast<std::uint8_t>(i / 16 * 16 + i % 2 * 8 + i % 16 / 2);
    }
    order.bias = -8;
    return order;
  }
};

}  // namespace
}  // namespace ferry::engine
