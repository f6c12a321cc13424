// Products on processors with AVX2, FMA and F16C.
#if defined(__x86_64__)
#include <immintrin.h>
#define FERRY_LANES_TARGET gnu::target("avx2,fma,f16c"),
#include "math/int8_kernel.hpp"

namespace ferry::engine {
namespace {

#define FERRY_INLINE [[FERRY_LANES_TARGET gnu::always_inline]] static

struct Avx2Lanes {
  using Vector = __m256;
  static constexpr std::uint32_t lanes = 8;
  static constexpr std::uint32_t most_rows = 3;  // 12 sums, 3 vectors of x and one of weights are 16 registers

  FERRY_INLINE Vector zero() { return _mm256_setzero_ps(); }
  FERRY_INLINE Vector all(float value) { return _mm256_set1_ps(value); }
  FERRY_INLINE Vector load(const float* at) { return _mm256_load_ps(at); }
  FERRY_INLINE Vector load_any(const std::byte* at) { return _mm256_loadu_ps(reinterpret_cast<const float*>(at)); }
  FERRY_INLINE void store(Vector v, float* at) { _mm256_store_ps(at, v); }
  FERRY_INLINE Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  FERRY_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }

  FERRY_INLINE void add_lanes(const Vector (&s)[outputs], float (&sum)[outputs]) {
    // Lanes 0 + 2 and 1 + 3 of two outputs side by side; then these, of all four; then the halves of the registers.
    const Vector a = _mm256_add_ps(_mm256_blend_ps(s[0], s[1], 0b11001100), _mm256_shuffle_ps(s[0], s[1], 0b01001110));
    const Vector b = _mm256_add_ps(_mm256_blend_ps(s[2], s[3], 0b11001100), _mm256_shuffle_ps(s[2], s[3], 0b01001110));
    const Vector all = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0b10001000), _mm256_shuffle_ps(a, b, 0b11011101));
    _mm_storeu_ps(sum, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }

  /// The same for one, in the same order.
  FERRY_INLINE float add_lanes(Vector s) {
    const __m256 pairs = _mm256_add_ps(s, _mm256_permute_ps(s, 0b01001110));
    const __m256 all = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0b10110001));
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }

  template <FloatType type>
  FERRY_INLINE void unpack(Floats<type> /*format*/, const std::byte* at, Vector (&to)[8]) {
#pragma GCC unroll 8
    for (std::uint32_t v = 0; v < 8; ++v) {
      if constexpr (type == FloatType::f32) {
        to[v] = load_any(at + v * 32);
      } else {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + v * 16));
        to[v] = type == FloatType::f16 ? _mm256_cvtph_ps(halves)
                                       : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
      }
    }
  }

  template <bool halves>
  FERRY_INLINE void unpack(Codes<8, halves> /*format*/, const std::byte* at, Vector (&to)[8]) {
#pragma GCC unroll 8
    for (std::uint32_t v = 0; v < 8; ++v) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + std::size_t{v} * 8));
      to[v] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
    }
  }

  // A code in the upper bits of a float's fraction, under a fixed exponent, is already a float: 4 bits on top of 32 in
  // steps of 2, 2 bits on top of 2 in steps of 1/2. Only one byte of each float differs, beside a constant one: codes
  // are moved into their place in bytes, all at once, made 16 bits with the constant, and then every other 16 bits are
  // the upper half of a float.

  template <bool halves>
  FERRY_INLINE void unpack(Codes<4, halves> /*format*/, const std::byte* at, Vector (&to)[8]) {
    __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    if constexpr (halves) codes = _mm256_permute4x64_epi64(codes, 0b11011000);  // the first half to the lower quarters
    const __m256i place = _mm256_set1_epi8(0x78);
    const __m256i low = _mm256_and_si256(_mm256_slli_epi16(codes, 3), place);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 1), place);
    widen_bytes(low, high, 0x42, to);
  }
  template <bool halves>
  FERRY_INLINE void unpack(Codes<2, halves> /*format*/, const std::byte* at, Vector (&to)[8]) {
    const __m256i codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));  // twice
    const __m256i place = _mm256_set1_epi8(0x60);
    const __m256i low = _mm256_and_si256(_mm256_sllv_epi32(codes, _mm256_setr_epi32(5, 5, 5, 5, 3, 3, 3, 3)), place);
    const __m256i high = _mm256_and_si256(
        _mm256_sllv_epi32(_mm256_srli_epi32(codes, 1), _mm256_setr_epi32(2, 2, 2, 2, 0, 0, 0, 0)), place);
    widen_bytes(low, high, 0x40, to);
  }
  FERRY_INLINE void widen_bytes(__m256i low, __m256i high, char above, Vector (&to)[8]) {
    const __m256i constant = _mm256_set1_epi8(above);
    const __m256i pairs[4] = {_mm256_unpacklo_epi8(low, constant), _mm256_unpacklo_epi8(high, constant),
                              _mm256_unpackhi_epi8(low, constant), _mm256_unpackhi_epi8(high, constant)};
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < 4; ++i) {
      to[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs[i], 16));
      to[2 * i + 1] = _mm256_castsi256_ps(_mm256_and_si256(pairs[i], _mm256_set1_epi32(-0x10000)));
    }
  }

  using Bytes = __m256i;

  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<8, halves> /*format*/, const std::byte* at, Bytes (&to)[2]) {
    const Bytes sign = _mm256_set1_epi8(-128);  // codes less 128 are signed numbers
    to[0] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), sign);
    to[1] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32)), sign);
  }
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<4, halves> /*format*/, const std::byte* at, Bytes (&to)[2]) {
    const Bytes codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), low = _mm256_set1_epi8(15);
    to[0] = _mm256_and_si256(codes, low);
    to[1] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
  }
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<2, halves> /*format*/, const std::byte* at, Bytes (&to)[2]) {
    const Bytes codes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));  // twice
    const Bytes low = _mm256_set1_epi8(3);
    to[0] = _mm256_and_si256(_mm256_srlv_epi32(codes, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2)), low);
    to[1] = _mm256_and_si256(_mm256_srlv_epi32(codes, _mm256_setr_epi32(4, 4, 4, 4, 6, 6, 6, 6)), low);
  }

  template <std::uint32_t bits>
  FERRY_INLINE Vector scales(Codes<bits, false> /*format*/, const std::byte* group) {
    return all(scale_of(group, 0));
  }
  template <std::uint32_t bits>
  FERRY_INLINE Vector scales(Codes<bits, true> /*format*/, const std::byte* group) {
    const float a = scale_of(group, 0), b = scale_of(group, 1);
    return bits == 2 ? _mm256_setr_ps(a, a, b, b, a, a, b, b) : _mm256_setr_ps(a, a, a, a, b, b, b, b);
  }

  // Two products are added to 16 bits, where they fit: of codes up to 15 and of -128 to 127 with -127 to 127.
  template <std::uint32_t bits, bool halves>
  FERRY_INLINE Vector dot(Codes<bits, halves> /*format*/, const Bytes (&weights)[2], const std::int8_t* x) {
    const Bytes pairs = _mm256_add_epi16(_mm256_maddubs_epi16(weights[0], load_bytes(x)),
                                         _mm256_maddubs_epi16(weights[1], load_bytes(x + 32)));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  template <bool halves>
  FERRY_INLINE Vector dot(Codes<8, halves> /*format*/, const Bytes (&weights)[2], const std::int8_t* x) {
    const Bytes a = dot_signed(weights[0], load_bytes(x)), b = dot_signed(weights[1], load_bytes(x + 32));
    if constexpr (!halves) return _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
    return _mm256_cvtepi32_ps(
        _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)));
  }
  FERRY_INLINE Bytes dot_signed(Bytes weights, Bytes x) {
    const Bytes pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  FERRY_INLINE Bytes load_bytes(const std::int8_t* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }

  static ColumnOrder order_int8(const PackedLayout& w) {
    ColumnOrder order = natural_order();
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      const std::uint32_t part = i / 32, byte = i % 32;
      if (w.bits == 4) order.column[i] = static_cast<std::uint8_t>(2 * byte + part);
      if (w.bits == 2) order.column[i] = static_cast<std::uint8_t>(4 * (byte % 16) + 2 * part + byte / 16);
    }
    if (w.bits == 8) order.bias = -128;
    return order;
  }

  static ColumnOrder order(const PassThroughLayout& /*w*/) {
    return natural_order();
  }
  static ColumnOrder order(const PackedLayout& w) {
    ColumnOrder order = natural_order();
    if (w.bits == 8) return order;
    for (std::uint32_t v = 0; v < 8; ++v) {
      for (std::uint32_t lane = 0; lane < 8; ++lane) {
        const std::uint32_t quarter = lane / 4, high = v / 2 % 2;           // as in unpack and widen_bytes
        const std::uint32_t in_quarter = v / 4 * 8 + lane % 4 * 2 + v % 2;  // the byte among its 16
        std::uint32_t column = 0;
        if (w.bits == 2) {
          column = in_quarter * 4 + high * 2 + quarter;
        } else if (w.group < stretch_columns) {
          column = (v / 4 * 16 + quarter * 8 + in_quarter % 8) * 2 + high;
        } else {
          column = (quarter * 16 + in_quarter) * 2 + high;
        }
        order.column[v * 8 + lane] = static_cast<std::uint8_t>(column);
      }
    }
    order.factor = w.bits == 4 ? 0.5F : 2.0F;
    order.bias = w.bits == 4 ? 16 : 4;
    return order;
  }
};

}  // namespace

const part::ProductKernel part::avx2_kernel = make_kernel<Avx2Lanes>();
const part::Int8Kernel part::avx2_int8_kernel = make_int8_kernel<Avx2Lanes>();

}  // namespace ferry::engine
#endif
