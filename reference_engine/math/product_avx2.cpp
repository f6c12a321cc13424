// Products on processors with AVX2, FMA and F16C.
#if defined(__x86_64__)
#include <immintrin.h>
#define FERRY_LANES_TARGET gnu::target("avx2,fma,f16c"),
#include "math/block_vectors.hpp"
#include "math/int8_kernel.hpp"

namespace ferry::engine {
namespace {

#define FERRY_INLINE [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] static

struct Avx2Lanes {
  using Vector = __m256;
  static constexpr std::uint32_t lanes = 8;
  static constexpr std::uint32_t most_rows = 3;  // 12 sums, 3 vectors of x and 1 of weights: 16 registers
  static constexpr std::uint32_t scaled_outputs = outputs;
  static constexpr bool one_stream = false;

  FERRY_INLINE Vector zero() { return _mm256_setzero_ps(); }
  FERRY_INLINE Vector all(float value) { return _mm256_set1_ps(value); }
  FERRY_INLINE Vector load(const float* at) { return _mm256_load_ps(at); }
  FERRY_INLINE Vector load_any(const std::byte* at) { return _mm256_loadu_ps(reinterpret_cast<const float*>(at)); }
  FERRY_INLINE Vector load_halves(const std::byte* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  FERRY_INLINE void store(Vector v, float* at) { _mm256_store_ps(at, v); }
  FERRY_INLINE Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  FERRY_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }

  FERRY_INLINE void add_lanes(const Vector (&s)[outputs], float (&sum)[outputs]) {
    // First lanes 0 + 2 and 1 + 3, two outputs in a register; then the two sums, all four outputs in a register; then its
    // halves.
    const Vector a = _mm256_add_ps(_mm256_blend_ps(s[0], s[1], 0b11001100), _mm256_shuffle_ps(s[0], s[1], 0b01001110));
    const Vector b = _mm256_add_ps(_mm256_blend_ps(s[2], s[3], 0b11001100), _mm256_shuffle_ps(s[2], s[3], 0b01001110));
    const Vector all = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0b10001000), _mm256_shuffle_ps(a, b, 0b11011101));
    _mm_storeu_ps(sum, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }

  /// The same for one output, in the same order.
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

  // A code in the upper bits of a float's fraction, with a fixed exponent, already is a float: 4 bits give 32 plus steps of
  // 2, 2 bits give 2 plus steps of 1/2. Floats differ in one byte only, below a constant one. So codes are shifted into
  // place, paired with the constant byte to 16 bits, and each 16 bits become the upper half of a float.

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

  // Blocks: codes become bytes, then floats, then are scaled. Products and sums are rounded as the format defines.

  struct Unit {
    float scales[16], minima[16];  ///< of 16 columns each
  };

  FERRY_INLINE float half(const std::byte* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
  }

  /// Two blocks of 32 that begin with their scale.
  template <BlockType type>
  FERRY_INLINE void prepare(Blocks<type> /*format*/, const std::byte* at, Unit& unit) {
    static_assert(Blocks<type>::stretches == 1);
    for (std::uint32_t i = 0; i < 4; ++i) unit.scales[i] = half(at + i / 2 * block_bytes(type));
    if constexpr (has_minima<type>) {
      for (std::uint32_t i = 0; i < 4; ++i) unit.minima[i] = -half(at + i / 2 * block_bytes(type) + 2);
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::mxfp4> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      unit.scales[i] = detail::half_power(detail::byte_at(at + i / 2 * block_bytes(BlockType::mxfp4), 0));
    }
  }
  /// Stores each of 8 numbers twice, for two groups of 16 columns.
  FERRY_INLINE void store_twice(Vector v, float (&to)[16]) {
    const Vector low = _mm256_unpacklo_ps(v, v), high = _mm256_unpackhi_ps(v, v);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q4_k> /*format*/, const std::byte* at, Unit& unit) {
    const __m128i both = k_scales_and_minima(at);
    const Vector d = all(half(at)), m = all(half(at + 2));
    store_twice(multiply(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(both))), unit.scales);
    store_twice(multiply(m, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(both, 8)))), unit.minima);
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q5_k> /*format*/, const std::byte* at, Unit& unit) {
    prepare(Blocks<BlockType::q4_k>{}, at, unit);
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q2_k> /*format*/, const std::byte* at, Unit& unit) {
    const float d = half(at + 80), m = half(at + 82);
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint32_t both = detail::byte_at(at, i);
      unit.scales[i] = d * static_cast<float>(both & 15U);
      unit.minima[i] = m * static_cast<float>(both >> 4U);
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q3_k> /*format*/, const std::byte* at, Unit& unit) {
    const float d = half(at + 108);
    const __m128i scales = q3_k_scales(at);
    _mm256_storeu_ps(unit.scales, multiply(all(d), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales))));
    const __m128i others = _mm_srli_si128(scales, 8);
    _mm256_storeu_ps(unit.scales + 8, multiply(all(d), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(others))));
  }
  FERRY_INLINE void prepare(Blocks<BlockType::iq4_xs> /*format*/, const std::byte* at, Unit& unit) {
    const float d = half(at);
    for (std::uint32_t i = 0; i < 8; ++i) {
      unit.scales[2 * i] = unit.scales[2 * i + 1] = d * static_cast<float>(detail::iq4_xs_scale(at, i));
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q6_k> /*format*/, const std::byte* at, Unit& unit) {
    const float d = half(at + 208);
    for (std::uint32_t i = 0; i < 16; ++i) {
      unit.scales[i] = d * static_cast<float>(static_cast<std::int8_t>(detail::byte_at(at + 192, i)));
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::fp8> /*format*/, const std::byte* at, Unit& unit) {
    std::memcpy(unit.scales, at, sizeof(float));
  }

  FERRY_INLINE __m256i load32(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  FERRY_INLINE __m256i low_four(__m256i codes) {
    return _mm256_and_si256(codes, _mm256_set1_epi8(15));
  }
  FERRY_INLINE __m256i high_four(__m256i codes) {
    return low_four(_mm256_srli_epi16(codes, 4));
  }

  /// 32 codes of a stretch.
  FERRY_INLINE __m256i codes(Blocks<BlockType::q8_0> /*format*/, const std::byte* at, std::uint32_t /*stretch*/,
                             std::uint32_t part) {
    return load32(at + part * block_bytes(BlockType::q8_0) + 2);
  }
  /// 16 bytes with two codes each.
  FERRY_INLINE __m256i fours(const std::byte* at) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return low_four(_mm256_set_m128i(_mm_srli_epi16(both, 4), both));
  }
  FERRY_INLINE __m256i look_up(__m128i table, __m256i four) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), four);
  }
  FERRY_INLINE __m128i iq4_values() {
    return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
  }
  /// `each` in the bytes whose bit is set.
  FERRY_INLINE __m256i where_set(std::uint32_t bits, char each) {
    const __m256i own = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<std::int64_t>(0x8040201008040201U));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<std::int32_t>(bits)), own);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(each));
  }
  template <BlockType type>
  FERRY_INLINE __m256i codes(Blocks<type> /*format*/, const std::byte* at, std::uint32_t /*stretch*/,
                             std::uint32_t part) {
    static_assert(Blocks<type>::stretches == 1);
    const std::byte* end = at + (part + 1) * block_bytes(type);
    const __m256i four = fours(end - 16);
    if constexpr (type == BlockType::q4_1) return four;
    if constexpr (type == BlockType::q4_0) return _mm256_sub_epi8(four, _mm256_set1_epi8(8));
    if constexpr (type == BlockType::iq4_nl) return look_up(iq4_values(), four);
    if constexpr (type == BlockType::mxfp4) {
      return look_up(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), four);
    }
    if constexpr (type == BlockType::q5_0 || type == BlockType::q5_1) {
      const __m256i five = _mm256_or_si256(four, where_set(detail::word_at(end - 20), 16));
      return type == BlockType::q5_1 ? five : _mm256_sub_epi8(five, _mm256_set1_epi8(16));
    }
  }
  FERRY_INLINE __m256i codes(Blocks<BlockType::iq4_xs> /*format*/, const std::byte* at, std::uint32_t stretch,
                             std::uint32_t part) {
    return look_up(iq4_values(), fours(at + 8 + (2 * stretch + part) * 16));
  }
  /// 32 codes of two bits.
  FERRY_INLINE __m256i twos(const std::byte* at, std::uint32_t stretch, std::uint32_t part) {
    const __m256i all = load32(at + stretch / 2 * 32);
    const auto by = static_cast<std::int32_t>(stretch % 2 * 4 + part * 2);
    return _mm256_and_si256(_mm256_srli_epi16(all, by), _mm256_set1_epi8(3));
  }
  FERRY_INLINE __m256i codes(Blocks<BlockType::q2_k> /*format*/, const std::byte* at, std::uint32_t stretch,
                             std::uint32_t part) {
    return twos(at + 16, stretch, part);
  }
  FERRY_INLINE __m256i codes(Blocks<BlockType::q3_k> /*format*/, const std::byte* at, std::uint32_t stretch,
                             std::uint32_t part) {
    const __m256i bit = _mm256_set1_epi8(static_cast<char>(1U << (2 * stretch + part)));
    const __m256i third = _mm256_cmpeq_epi8(_mm256_and_si256(load32(at), bit), bit);
    const __m256i less = _mm256_andnot_si256(third, _mm256_set1_epi8(4));
    return _mm256_sub_epi8(twos(at + 32, stretch, part), less);
  }
  FERRY_INLINE __m256i codes(Blocks<BlockType::q4_k> /*format*/, const std::byte* at, std::uint32_t stretch,
                             std::uint32_t part) {
    const __m256i both = load32(at + 16 + stretch * 32);
    return part == 0 ? low_four(both) : high_four(both);
  }
  FERRY_INLINE __m256i codes(Blocks<BlockType::q5_k> /*format*/, const std::byte* at, std::uint32_t stretch,
                             std::uint32_t part) {
    const __m256i both = load32(at + 48 + stretch * 32), four = part == 0 ? low_four(both) : high_four(both);
    const __m256i bit = _mm256_set1_epi8(static_cast<char>(1U << (2 * stretch + part)));
    const __m256i fifth = _mm256_cmpeq_epi8(_mm256_and_si256(load32(at + 16), bit), bit);
    return _mm256_or_si256(four, _mm256_and_si256(fifth, _mm256_set1_epi8(16)));
  }
  FERRY_INLINE __m256i codes(Blocks<BlockType::q6_k> /*format*/, const std::byte* at, std::uint32_t stretch,
                             std::uint32_t part) {
    const __m256i both = load32(at + stretch / 2 * 64 + part * 32), two = load32(at + 128 + stretch / 2 * 32);
    const std::uint32_t of_four = stretch % 2 * 2 + part;
    const __m256i low = of_four < 2 ? low_four(both) : high_four(both);
    const __m256i high = of_four == 0   ? _mm256_slli_epi16(two, 4)
                         : of_four == 1 ? _mm256_slli_epi16(two, 2)
                         : of_four == 2 ? two
                                        : _mm256_srli_epi16(two, 2);
    return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48))), _mm256_set1_epi8(32));
  }

  template <BlockType type>
  FERRY_INLINE void unpack(Blocks<type> format, const std::byte* at, const Unit& unit, std::uint32_t stretch,
                           Vector (&to)[8]) {
    if constexpr (type == BlockType::fp8) {
      const Vector d = all(unit.scales[0]);
#pragma GCC unroll 4
      for (std::uint32_t i = 0; i < 4; ++i) {
        const __m256i halves = halves_e4m3(at + 4 + stretch * stretch_columns + i * 16);
        to[2 * i] = multiply(d, multiply(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), all(256)));
        to[2 * i + 1] = multiply(d, multiply(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), all(256)));
      }
    } else {
#pragma GCC unroll 2
      for (std::uint32_t part = 0; part < 2; ++part) {
        const __m256i bytes = codes(format, at, stretch, part);
        const __m128i halves[2] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
#pragma GCC unroll 4
        for (std::uint32_t i = 0; i < 4; ++i) {
          const __m128i eight = i % 2 == 0 ? halves[i / 2] : _mm_srli_si128(halves[i / 2], 8);
          const Vector scale = _mm256_set1_ps(unit.scales[stretch * 4 + part * 2 + i / 2]);
          const Vector numbers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
          if constexpr (has_minima<type>) {
            // The product is exact in so few bits, so that this rounds once, like the format's own difference.
            const Vector minimum = _mm256_set1_ps(unit.minima[stretch * 4 + part * 2 + i / 2]);
            to[part * 4 + i] = _mm256_fmsub_ps(scale, numbers, minimum);
          } else {
            to[part * 4 + i] = multiply(scale, numbers);
          }
        }
      }
    }
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

struct Avx2Int8Lanes : Avx2Lanes {
  using Ints = __m256i;
  struct Bytes {
    __m256i half[2];
  };
  static constexpr std::uint32_t int8_rows = 4;  // 4 sums of 32 bits, 4 of 16, 4 of floats, codes and activations

  /// An upper bound of the codes; 255 stands for signed codes.
  template <std::uint32_t bits, bool halves>
  static constexpr std::int32_t largest(Codes<bits, halves> /*format*/) {
    return (1 << bits) - 1;
  }
  template <BlockType type>
  static constexpr std::int32_t largest(Blocks<type> /*format*/) {
    using enum BlockType;
    if (centre_of(type) == 128) return 255;
    return type == q6_k ? 63 : type == q5_0 || type == q5_1 || type == q5_k || type == mxfp4 ? 31 : 15;
  }
  template <class Format>
  static constexpr bool is_signed(Format format) {
    return largest(format) == 255;
  }
  template <std::uint32_t bits, bool halves>
  static constexpr float bias(Codes<bits, halves> format) {
    return is_signed(format) ? 128 : 0;
  }
  template <BlockType type>
  static constexpr float bias(Blocks<type> format) {
    return static_cast<float>(is_signed(format) ? 0 : -centre_of(type));
  }
  FERRY_INLINE Ints no_ints() { return _mm256_setzero_si256(); }
  FERRY_INLINE Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
  FERRY_INLINE Vector to_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
  FERRY_INLINE void store_any(Vector v, float* at) { _mm256_storeu_ps(at, v); }

  // If a stretch has two groups, the lower half of each register has the codes of the first.
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<8, halves> /*format*/, const std::byte* at, Bytes& to) {
    const __m256i sign = _mm256_set1_epi8(-128);
    const __m256i a = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), sign);
    const __m256i b = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32)), sign);
    to.half[0] = halves ? _mm256_permute2x128_si256(a, b, 0x20) : a;
    to.half[1] = halves ? _mm256_permute2x128_si256(a, b, 0x31) : b;
  }
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<4, halves> /*format*/, const std::byte* at, Bytes& to) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), low = _mm256_set1_epi8(15);
    to.half[0] = _mm256_and_si256(codes, low);
    to.half[1] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
  }
  template <bool halves>
  FERRY_INLINE void unpack_bytes(Codes<2, halves> /*format*/, const std::byte* at, Bytes& to) {
    const __m256i once = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    const __m256i codes = _mm256_permute4x64_epi64(once, 0b01010000);  // each eight bytes twice
    const __m256i low = _mm256_set1_epi8(3);
    to.half[0] = _mm256_and_si256(_mm256_srlv_epi64(codes, _mm256_setr_epi64x(0, 2, 0, 2)), low);
    to.half[1] = _mm256_and_si256(_mm256_srlv_epi64(codes, _mm256_setr_epi64x(4, 6, 4, 6)), low);
  }
  static ColumnOrder order_int8(const PackedLayout& w) {
    ColumnOrder order = natural_order();
    for (std::uint32_t i = 0; i < stretch_columns; ++i) {
      const std::uint32_t half = i / 32, byte = i % 32, upper = byte / 16;
      std::uint32_t column = i;
      if (w.bits == 8 && w.group < stretch_columns) column = upper * 32 + half * 16 + byte % 16;
      if (w.bits == 4) column = 2 * byte + half;
      if (w.bits == 2) column = 4 * (upper * 8 + byte % 8) + 2 * half + byte % 16 / 8;
      order.column[i] = static_cast<std::uint8_t>(column);
    }
    return order;
  }

  // Blocks: the first register has the first 16 of each 32 columns, the second the others.
  static ColumnOrder order_int8() { return order_int8(PackedLayout{.bits = 8, .group = stretch_columns / 2}); }
  template <BlockType type>
  FERRY_INLINE void unpack_bytes(Blocks<type> format, const std::byte* at, std::uint32_t stretch, Bytes& to) {
    const char centre = static_cast<char>(is_signed(format) ? 0 : centre_of(type));
    const __m256i a = _mm256_add_epi8(codes(format, at, stretch, 0), _mm256_set1_epi8(centre));
    const __m256i b = _mm256_add_epi8(codes(format, at, stretch, 1), _mm256_set1_epi8(centre));
    to.half[0] = _mm256_permute2x128_si256(a, b, 0x20);
    to.half[1] = _mm256_permute2x128_si256(a, b, 0x31);
  }
  template <BlockType type>
  FERRY_INLINE void set_scales(Blocks<type> format, const std::byte* const (&units)[8], std::int32_t (*to)[8]) {
    constexpr std::uint32_t each = 4 / int8_groups<Blocks<type>>;  // 16 columns
    for (std::uint32_t o = 0; o < 8; ++o) {
      Unit unit;
      prepare(format, units[o], unit);
      for (std::uint32_t g = 0; g < Blocks<type>::stretches * int8_groups<Blocks<type>>; ++g) {
        to[2 * g][o] = __builtin_bit_cast(std::int32_t, unit.scales[g * each]);
        to[2 * g + 1][o] = __builtin_bit_cast(std::int32_t, has_minima<type> ? -unit.minima[g * each] : 0.0F);
      }
    }
  }
  FERRY_INLINE Vector widen_halves(const std::uint16_t (&from)[lanes]) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  // Pairs of products with -127 to 127 are added up in 16 bits as far as that cannot overflow: eight pairs of codes up to 15,
  // four of codes up to 31, two of codes up to 63, one of signed codes.
  template <class Format>
  FERRY_INLINE auto dot(Format /*format*/, const Bytes& codes, const std::int8_t* x) {
    if constexpr (int8_groups<Format> == 4) {
      return Quarters{widen(_mm256_maddubs_epi16(codes.half[0], load_bytes(x))),
                      widen(_mm256_maddubs_epi16(codes.half[1], load_bytes(x + 32)))};
    } else if constexpr (is_signed(Format{})) {
      return add(dot_signed(codes.half[0], load_bytes(x)), dot_signed(codes.half[1], load_bytes(x + 32)));
    } else {
      return widen(_mm256_add_epi16(_mm256_maddubs_epi16(codes.half[0], load_bytes(x)),
                                    _mm256_maddubs_epi16(codes.half[1], load_bytes(x + 32))));
    }
  }
  struct Quarters {
    Ints even = {}, odd = {};  ///< 0 and 2, 1 and 3
  };
  FERRY_INLINE Ints widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
  FERRY_INLINE Ints dot_signed(__m256i codes, __m256i x) {
    return widen(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)));
  }
  FERRY_INLINE __m256i load_bytes(const std::int8_t* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }

  /// The sums of outputs 0 to 7, over the lower four lanes and over the upper.
  FERRY_INLINE void add_up(const Ints (&s)[8], Ints (&parts)[2]) {
    const Ints a = fours(s[0], s[1], s[2], s[3]), b = fours(s[4], s[5], s[6], s[7]);
    parts[0] = _mm256_permute2x128_si256(a, b, 0x20);
    parts[1] = _mm256_permute2x128_si256(a, b, 0x31);
  }
  /// The same over each quarter of the columns.
  FERRY_INLINE void add_up(const Quarters (&s)[8], Ints (&parts)[4]) {
    Ints even[8], odd[8], of_even[2], of_odd[2];
#pragma GCC unroll 8
    for (std::uint32_t o = 0; o < 8; ++o) even[o] = s[o].even, odd[o] = s[o].odd;
    add_up(even, of_even);
    add_up(odd, of_odd);
    parts[0] = of_even[0], parts[1] = of_odd[0], parts[2] = of_even[1], parts[3] = of_odd[1];
  }
  FERRY_INLINE Ints fours(Ints a, Ints b, Ints c, Ints d) {
    const Ints ab = pairs(a, b), cd = pairs(c, d);
    return add(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  }
  FERRY_INLINE Ints pairs(Ints a, Ints b) {
    return add(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  }

  /// Puts four bytes of each output into a vector: `to` is [16 vectors, 8 outputs, 4].
  FERRY_INLINE void transpose(const Bytes (&from)[8], std::byte* to) {
#pragma GCC unroll 2
    for (std::uint32_t half = 0; half < 2; ++half) {
      const __m256i all[8] = {from[0].half[half], from[1].half[half], from[2].half[half], from[3].half[half],
                              from[4].half[half], from[5].half[half], from[6].half[half], from[7].half[half]};
      transpose(all, to + std::size_t{half} * 256);
    }
  }
  FERRY_INLINE void transpose(const __m256i (&from)[8], std::byte* to) {
    __m256i of_four[2][4];  // four vectors each; number c has lanes c and 4 + c of them
#pragma GCC unroll 2
    for (std::uint32_t i = 0; i < 2; ++i) {
      const __m256i a = _mm256_unpacklo_epi32(from[4 * i], from[4 * i + 1]);
      const __m256i b = _mm256_unpackhi_epi32(from[4 * i], from[4 * i + 1]);
      const __m256i c = _mm256_unpacklo_epi32(from[4 * i + 2], from[4 * i + 3]);
      const __m256i d = _mm256_unpackhi_epi32(from[4 * i + 2], from[4 * i + 3]);
      of_four[i][0] = _mm256_unpacklo_epi64(a, c);
      of_four[i][1] = _mm256_unpackhi_epi64(a, c);
      of_four[i][2] = _mm256_unpacklo_epi64(b, d);
      of_four[i][3] = _mm256_unpackhi_epi64(b, d);
    }
#pragma GCC unroll 4
    for (std::uint32_t c = 0; c < 4; ++c) {
      put(_mm256_permute2x128_si256(of_four[0][c], of_four[1][c], 0x20), to, c);
      put(_mm256_permute2x128_si256(of_four[0][c], of_four[1][c], 0x31), to, 4 + c);
    }
  }
  FERRY_INLINE void transpose_ints(const Ints (&from)[8], std::int32_t* to) {
    transpose(from, reinterpret_cast<std::byte*>(to));
  }
  FERRY_INLINE Ints load_any_ints(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  FERRY_INLINE Ints load_ints(const std::int32_t* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }
  FERRY_INLINE void put(__m256i v, std::byte* to, std::uint32_t number) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + std::size_t{number} * 32), v);
  }

  /// Adds the products of quarters `first` to `end` - 1 of a stretch with rows of x.
  template <class Format, std::uint32_t rows>
  FERRY_INLINE void dot_side_by_side(Format /*format*/, const std::byte* codes, std::uint32_t first, std::uint32_t end,
                                     const Int8Rows::Chunk* x, std::uint32_t stretch, Ints (&sums)[rows]) {
    // `together`: vectors whose pairs of products are added up in 16 bits. A quarter has four vectors.
    constexpr std::uint32_t fit = 32767 / 127 / 2 / largest(Format{});
    constexpr std::uint32_t together = std::min(fit == 0 ? 1U : fit, int8_groups<Format> == 4 ? 4U : 8U);
#pragma GCC unroll 2
    for (std::uint32_t i = first * 4; i < end * 4; i += together) {
      __m256i pairs[rows];
#pragma GCC unroll 4
      for (std::uint32_t r = 0; r < rows; ++r) pairs[r] = no_ints();
#pragma GCC unroll 8
      for (std::uint32_t j = i; j < i + together; ++j) {
        const std::uint32_t quarter = j / 4, number = quarter % 2 * 8 + quarter / 2 * 4 + j % 4;
        const auto own = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + std::size_t{number} * 32));
#pragma GCC unroll 4
        for (std::uint32_t r = 0; r < rows; ++r) {
          std::int32_t four;
          std::memcpy(&four, x[r].values[stretch] + std::size_t{number} * 4, sizeof(four));
          const __m256i at = _mm256_set1_epi32(four);
          if constexpr (is_signed(Format{})) {
            sums[r] = add(sums[r], dot_signed(own, at));
          } else {
            pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(own, at));
          }
        }
      }
      if constexpr (!is_signed(Format{})) {
#pragma GCC unroll 4
        for (std::uint32_t r = 0; r < rows; ++r) sums[r] = add(sums[r], widen(pairs[r]));
      }
    }
  }
};

}  // namespace

const part::ProductKernel part::avx2_kernel = make_kernel<Avx2Lanes>();
const part::Int8Kernel part::avx2_int8_kernel = make_int8_kernel<Avx2Int8Lanes>();

}  // namespace ferry::engine
#endif
