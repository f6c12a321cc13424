// The vocabulary of AVX-512 F for the kernel of PackedProduct. The file that includes this has to provide the intrinsics and
// FERRY_LANES_TARGET: a test emulates them.
#pragma once
#include "math/block_vectors.hpp"
#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

#define FERRY_INLINE [[FERRY_LANES_TARGET FERRY_LANES_INLINE]] static

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
  FERRY_INLINE Vector load_halves(const std::byte* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  FERRY_INLINE void store(Vector v, float* at) { _mm512_store_ps(at, v); }
  FERRY_INLINE Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  FERRY_INLINE Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  FERRY_INLINE Vector fms(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }

  /// Adds each vector, half to half, until one lane is left; four together, in the same order with fewer instructions.
  FERRY_INLINE void add_lanes(const Vector (&s)[outputs], float (&sum)[outputs]) {
    const Vector a = add_halves(s[0], s[1]), b = add_halves(s[2], s[3]);
    // Quarters 0 and 2 of both beside 1 and 3.
    const Vector four = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0b10001000), _mm512_shuffle_f32x4(a, b, 0b11011101));
    const Vector two = _mm512_add_ps(four, _mm512_permute_ps(four, 0b01001110));
    const Vector one = _mm512_add_ps(two, _mm512_permute_ps(two, 0b10110001));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(sum, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
  }
  /// The half sums of a, and behind them those of b.
  FERRY_INLINE Vector add_halves(Vector a, Vector b) {
    const Vector kept = _mm512_mask_blend_ps(static_cast<__mmask16>(0xff00), a, b);
    return _mm512_add_ps(kept, _mm512_shuffle_f32x4(a, b, 0b01001110));
  }
  FERRY_INLINE float add_lanes(Vector s) { return _mm512_reduce_add_ps(s); }

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
  /// `bytes` bytes, as many times as they fit.
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

  // Blocks. Codes of four bits are looked up among the 16 floats that they can stand for; those of bytes become floats and
  // are multiplied, and each product and sum is rounded as the format has it: a product of a scale and a code has so few
  // bits that it is exact, so that a minimum is added to it in one instruction.

  struct Unit {
    Vector tables[2];
    __m512i high[2];
    alignas(64) float numbers[16], minima[16];
  };

  FERRY_INLINE Vector steps(float first) {
    return _mm512_add_ps(all(first), _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  }
  FERRY_INLINE __m128i bytes16(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  FERRY_INLINE Vector signed_floats(__m128i bytes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  FERRY_INLINE Vector half(const std::byte* at) {
    std::int16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return _mm512_cvtph_ps(_mm256_set1_epi16(bits));
  }
  /// Stores numbers that are read one at a time: such a read is part of the instruction that uses it, and costs nothing.
  /// Compilers must not know what was stored: they would take it out of the register again, by the port that looks up.
  FERRY_INLINE void keep(Vector v, float (&numbers)[16]) {
    store(v, numbers);
    asm("" : "+m"(numbers));
  }
  FERRY_INLINE Vector look_up(__m512i codes, Vector table) {
    return _mm512_permutexvar_ps(codes, table);
  }

  FERRY_INLINE void prepare(Blocks<BlockType::q8_0> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t b = 0; b < 2; ++b) unit.tables[b] = half(at + b * block_bytes(BlockType::q8_0));
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q8_0> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t /*stretch*/, Vector (&to)[4]) {
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < 4; ++v) {
      const std::byte* codes = at + v / 2 * block_bytes(BlockType::q8_0) + 2 + v % 2 * 16;
      to[v] = multiply(unit.tables[v / 2], signed_floats(bytes16(codes)));
    }
  }

  FERRY_INLINE void prepare(Blocks<BlockType::q4_0> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t b = 0; b < 2; ++b) {
      unit.tables[b] = multiply(half(at + b * block_bytes(BlockType::q4_0)), steps(-8));
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q4_1> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t b = 0; b < 2; ++b) {
      const std::byte* own = at + b * block_bytes(BlockType::q4_1);
      unit.tables[b] = fma(half(own), steps(0), half(own + 2));
    }
  }
  /// What the codes of iq4_nl and iq4_xs stand for.
  FERRY_INLINE Vector iq4_values() {
    return _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
  }
  FERRY_INLINE void prepare(Blocks<BlockType::iq4_nl> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t b = 0; b < 2; ++b) {
      unit.tables[b] = multiply(half(at + b * block_bytes(BlockType::iq4_nl)), iq4_values());
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::mxfp4> /*format*/, const std::byte* at, Unit& unit) {
    const Vector twice = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    for (std::uint32_t b = 0; b < 2; ++b) {
      const std::uint32_t e = detail::byte_at(at + b * block_bytes(BlockType::mxfp4), 0);
      unit.tables[b] = multiply(all(detail::half_power(e)), twice);
    }
  }
  template <BlockType type>
  FERRY_INLINE void unpack(Blocks<type> /*format*/, const std::byte* at, const Unit& unit, std::uint32_t /*stretch*/,
                           Vector (&to)[4]) {
    static_assert(Blocks<type>::stretches == 1 && block_bytes(type) <= 20);
#pragma GCC unroll 2
    for (std::uint32_t b = 0; b < 2; ++b) {
      const __m512i codes = _mm512_cvtepu8_epi32(bytes16(at + (b + 1) * block_bytes(type) - 16));
      to[2 * b] = look_up(codes, unit.tables[b]);
      to[2 * b + 1] = look_up(_mm512_srli_epi32(codes, 4), unit.tables[b]);
    }
  }

  /// q5_0 and q5_1. `low`, `high`: what codes from 0 and from 16 on stand for.
  template <BlockType type>
  FERRY_INLINE void unpack_five(const std::byte* at, Vector low, Vector high, Vector& first, Vector& second) {
    const std::byte* end = at + block_bytes(type);
    const __m512i codes = _mm512_cvtepu8_epi32(bytes16(end - 16)), four = _mm512_set1_epi32(15);
    const __m512i bits = _mm512_set1_epi32(static_cast<std::int32_t>(detail::word_at(end - 20)));
    // Each lane's bit becomes the fifth of its code.
    const __m512i by = _mm512_setr_epi32(4, 3, 2, 1, 0, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21);
    const __m512i fifths[2] = {_mm512_rolv_epi32(bits, by),
                               _mm512_rolv_epi32(bits, _mm512_xor_si512(by, _mm512_set1_epi32(16)))};
    // Four bits of the codes and the fifth; those above do not count.
    first = _mm512_permutex2var_ps(low, _mm512_ternarylogic_epi32(four, codes, fifths[0], 0b11001010), high);
    second = _mm512_permutex2var_ps(
        low, _mm512_ternarylogic_epi32(four, _mm512_srli_epi32(codes, 4), fifths[1], 0b11001010), high);
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q5_0> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t b = 0; b < 2; ++b) unit.tables[b] = half(at + b * block_bytes(BlockType::q5_0));
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q5_0> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t /*stretch*/, Vector (&to)[4]) {
#pragma GCC unroll 2
    for (std::uint32_t b = 0; b < 2; ++b) {
      unpack_five<BlockType::q5_0>(at + b * block_bytes(BlockType::q5_0), multiply(unit.tables[b], steps(-16)),
                                   multiply(unit.tables[b], steps(0)), to[2 * b], to[2 * b + 1]);
    }
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q5_1> /*format*/, const std::byte* at, Unit& unit) {
    for (std::uint32_t b = 0; b < 2; ++b) unit.tables[b] = half(at + b * block_bytes(BlockType::q5_1));
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q5_1> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t /*stretch*/, Vector (&to)[4]) {
#pragma GCC unroll 2
    for (std::uint32_t b = 0; b < 2; ++b) {
      const std::byte* own = at + b * block_bytes(BlockType::q5_1);
      const Vector m = half(own + 2);
      unpack_five<BlockType::q5_1>(own, fma(unit.tables[b], steps(0), m), fma(unit.tables[b], steps(16), m), to[2 * b],
                                   to[2 * b + 1]);
    }
  }

  /// The 8 scales of a block, less 32, and once more.
  FERRY_INLINE __m512i iq4_xs_scales(const std::byte* at) {
    const __m512i by = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const auto low = static_cast<std::int32_t>(detail::word_at(at + 4));
    const auto high = static_cast<std::int32_t>(detail::word_at(at));  // in its upper half
    const __m512i lows = _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi32(low), by), _mm512_set1_epi32(15));
    const __m512i highs =
        _mm512_srlv_epi32(_mm512_set1_epi32(high), _mm512_add_epi32(_mm512_srli_epi32(by, 1), _mm512_set1_epi32(16)));
    const __m512i scales = _mm512_or_si512(lows, _mm512_slli_epi32(_mm512_and_si512(highs, _mm512_set1_epi32(3)), 4));
    return _mm512_sub_epi32(scales, _mm512_set1_epi32(32));
  }
  FERRY_INLINE void prepare(Blocks<BlockType::iq4_xs> /*format*/, const std::byte* at, Unit& unit) {
    keep(multiply(half(at), _mm512_cvtepi32_ps(iq4_xs_scales(at))), unit.numbers);
  }
  FERRY_INLINE void unpack(Blocks<BlockType::iq4_xs> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
#pragma GCC unroll 2
    for (std::uint32_t p = 0; p < 2; ++p) {
      const __m512i codes = _mm512_cvtepu8_epi32(bytes16(at + 8 + (2 * stretch + p) * 16));
      const Vector table = multiply(all(unit.numbers[2 * stretch + p]), iq4_values());
      to[2 * p] = look_up(codes, table);
      to[2 * p + 1] = look_up(_mm512_srli_epi32(codes, 4), table);
    }
  }

  FERRY_INLINE void prepare(Blocks<BlockType::q2_k> /*format*/, const std::byte* at, Unit& unit) {
    const __m512i both = _mm512_cvtepu8_epi32(bytes16(at));
    const __m512i scales = _mm512_and_si512(both, _mm512_set1_epi32(15)), minima = _mm512_srli_epi32(both, 4);
    keep(multiply(half(at + 80), _mm512_cvtepi32_ps(scales)), unit.numbers);
    keep(multiply(half(at + 82), _mm512_cvtepi32_ps(minima)), unit.minima);
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q2_k> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
    // Every fourth is alike: the upper bits of an index, which belong to other codes, do not count.
    const Vector numbers = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
#pragma GCC unroll 2
    for (std::uint32_t i = 0; i < 2; ++i) {
      const __m512i bytes = _mm512_cvtepu8_epi32(bytes16(at + 16 + stretch / 2 * 32 + i * 16));
#pragma GCC unroll 2
      for (std::uint32_t p = 0; p < 2; ++p) {
        const std::uint32_t part = 4 * stretch + 2 * p + i;  // of 16
        const Vector table = fms(all(unit.numbers[part]), numbers, all(unit.minima[part]));
        to[2 * p + i] = look_up(_mm512_srli_epi32(bytes, stretch % 2 * 4 + 2 * p), table);
      }
    }
  }

  FERRY_INLINE void prepare(Blocks<BlockType::q3_k> /*format*/, const std::byte* at, Unit& unit) {
    keep(multiply(half(at + 108), signed_floats(q3_k_scales(at))), unit.numbers);
    for (std::uint32_t i = 0; i < 2; ++i) unit.high[i] = _mm512_cvtepu8_epi32(bytes16(at + i * 16));
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q3_k> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
    const Vector numbers = _mm512_setr_ps(-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3);  // as above
    const __m512i two = _mm512_set1_epi32(3);
#pragma GCC unroll 2
    for (std::uint32_t i = 0; i < 2; ++i) {
      const __m512i bytes = _mm512_cvtepu8_epi32(bytes16(at + 32 + stretch / 2 * 32 + i * 16));
#pragma GCC unroll 2
      for (std::uint32_t p = 0; p < 2; ++p) {
        const std::uint32_t bit = 2 * stretch + p;  // of those in `high`
        const __m512i third =
            bit <= 2 ? _mm512_slli_epi32(unit.high[i], 2 - bit) : _mm512_srli_epi32(unit.high[i], bit - 2);
        const __m512i codes = _mm512_srli_epi32(bytes, stretch % 2 * 4 + 2 * p);
        to[2 * p + i] = look_up(_mm512_ternarylogic_epi32(two, codes, third, 0b11001010),
                                multiply(all(unit.numbers[2 * bit + i]), numbers));
      }
    }
  }

  /// d times the scales, and m times the minima.
  FERRY_INLINE void scale_k(const std::byte* at, Unit& unit) {
    std::int32_t both;  // d and m
    std::memcpy(&both, at, sizeof(both));
    const __m256i d_or_m = _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100));
    const Vector factors = _mm512_cvtph_ps(_mm256_shuffle_epi8(_mm256_set1_epi32(both), d_or_m));
    keep(multiply(factors, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(k_scales_and_minima(at)))), unit.numbers);
  }
  /// What the codes from `first` on stand for, of one of eight parts.
  FERRY_INLINE Vector table_k(const Unit& unit, std::uint32_t part, float first) {
    return fms(all(unit.numbers[part]), steps(first), all(unit.numbers[8 + part]));
  }
  FERRY_INLINE void prepare(Blocks<BlockType::q4_k> /*format*/, const std::byte* at, Unit& unit) {
    scale_k(at, unit);
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q4_k> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
    const Vector low = table_k(unit, 2 * stretch, 0), high = table_k(unit, 2 * stretch + 1, 0);
#pragma GCC unroll 2
    for (std::uint32_t i = 0; i < 2; ++i) {
      const __m512i codes = _mm512_cvtepu8_epi32(bytes16(at + 16 + stretch * 32 + i * 16));
      to[i] = look_up(codes, low);
      to[2 + i] = look_up(_mm512_srli_epi32(codes, 4), high);
    }
  }

  FERRY_INLINE void prepare(Blocks<BlockType::q5_k> /*format*/, const std::byte* at, Unit& unit) {
    scale_k(at, unit);
    for (std::uint32_t i = 0; i < 2; ++i) unit.high[i] = _mm512_cvtepu8_epi32(bytes16(at + 16 + i * 16));
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q5_k> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
    const __m512i four = _mm512_set1_epi32(15);
#pragma GCC unroll 2
    for (std::uint32_t p = 0; p < 2; ++p) {
      const std::uint32_t part = 2 * stretch + p;
      const Vector low = table_k(unit, part, 0), high = table_k(unit, part, 16);
#pragma GCC unroll 2
      for (std::uint32_t i = 0; i < 2; ++i) {
        const __m512i bytes = _mm512_cvtepu8_epi32(bytes16(at + 48 + stretch * 32 + i * 16));
        const __m512i codes = p == 0 ? bytes : _mm512_srli_epi32(bytes, 4);
        const __m512i fifth =
            part <= 4 ? _mm512_slli_epi32(unit.high[i], 4 - part) : _mm512_srli_epi32(unit.high[i], part - 4);
        // Four bits of the codes and the fifth; those above do not count.
        const __m512i all = _mm512_ternarylogic_epi32(four, codes, fifth, 0b11001010);
        to[2 * p + i] = _mm512_permutex2var_ps(low, all, high);
      }
    }
  }

  FERRY_INLINE void prepare(Blocks<BlockType::q6_k> /*format*/, const std::byte* at, Unit& unit) {
    keep(multiply(half(at + 208), signed_floats(bytes16(at + 192))), unit.numbers);
  }
  FERRY_INLINE void unpack(Blocks<BlockType::q6_k> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
    const auto load32 = [](const std::byte* from) { return reinterpret_cast<const __m256i*>(from); };
    const __m256i two = _mm256_loadu_si256(load32(at + 128 + stretch / 2 * 32));
#pragma GCC unroll 2
    for (std::uint32_t p = 0; p < 2; ++p) {
      const std::uint32_t part = stretch % 2 * 2 + p;  // of four
      const __m256i four = _mm256_loadu_si256(load32(at + stretch / 2 * 64 + p * 32));
      const __m256i low = _mm256_and_si256(part < 2 ? four : _mm256_srli_epi16(four, 4), _mm256_set1_epi8(15));
      const __m256i placed = part == 0   ? _mm256_slli_epi16(two, 4)
                             : part == 1 ? _mm256_slli_epi16(two, 2)
                             : part == 2 ? two
                                         : _mm256_srli_epi16(two, 2);
      const __m256i codes =
          _mm256_sub_epi8(_mm256_or_si256(low, _mm256_and_si256(placed, _mm256_set1_epi8(48))), _mm256_set1_epi8(32));
      to[2 * p] = multiply(all(unit.numbers[4 * stretch + 2 * p]), signed_floats(_mm256_castsi256_si128(codes)));
      to[2 * p + 1] =
          multiply(all(unit.numbers[4 * stretch + 2 * p + 1]), signed_floats(_mm256_extracti128_si256(codes, 1)));
    }
  }

  FERRY_INLINE void prepare(Blocks<BlockType::fp8> /*format*/, const std::byte* at, Unit& unit) {
    float d;
    std::memcpy(&d, at, sizeof(d));
    unit.tables[0] = all(d);
  }
  FERRY_INLINE void unpack(Blocks<BlockType::fp8> /*format*/, const std::byte* at, const Unit& unit,
                           std::uint32_t stretch, Vector (&to)[4]) {
#pragma GCC unroll 4
    for (std::uint32_t v = 0; v < 4; ++v) {
      const Vector numbers = _mm512_cvtph_ps(halves_e4m3(at + 4 + stretch * stretch_columns + v * 16));
      to[v] = multiply(unit.tables[0], multiply(numbers, all(256)));
    }
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
