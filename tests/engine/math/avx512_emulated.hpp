/// @file
/// The intrinsics of AVX-512 that lanes_avx512.hpp uses, on processors without it.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cstdint>
#include <cstring>

#include "ferry/codec/pass_through.hpp"

namespace ferry::test {

/// Lane by lane, for intrinsics that SIMDe 0.7.4 lacks.
template <class From, class To, class Source, class Change>
To each_lane(const Source& source, const Change& change) {
  From from[16];
  static_assert(sizeof(from) == sizeof(source));
  std::memcpy(from, &source, sizeof(from));
  decltype(change(From{})) to[16];
  for (int i = 0; i < 16; ++i) to[i] = change(from[i]);
  To all;
  static_assert(sizeof(to) == sizeof(all));
  std::memcpy(&all, to, sizeof(all));
  return all;
}

inline __m512 cvtph(__m256i v) {
  return each_lane<std::uint16_t, __m512>(v, [](std::uint16_t h) { return detail::widen_f16(h); });
}
inline __m512i widen16(__m256i v) {
  return each_lane<std::uint16_t, __m512i>(v, [](std::uint16_t i) { return std::int32_t{i}; });
}
inline __m512i widen8(__m128i v) {
  return each_lane<std::uint8_t, __m512i>(v, [](std::uint8_t i) { return std::int32_t{i}; });
}
inline __m512i widen8_signed(__m128i v) {
  return each_lane<std::int8_t, __m512i>(v, [](std::int8_t i) { return std::int32_t{i}; });
}
inline __m512 to_floats(__m512i v) {
  return each_lane<std::int32_t, __m512>(v, [](std::int32_t i) { return static_cast<float>(i); });
}
/// Permutes each group of four lanes by two bits a lane.
inline __m512 permute(__m512 v, unsigned which) {
  float from[16], to[16];
  std::memcpy(from, &v, sizeof(from));
  for (unsigned i = 0; i < 16; ++i) to[i] = from[i / 4 * 4 + (which >> 2 * (i % 4) & 3U)];
  std::memcpy(&v, to, sizeof(to));
  return v;
}
/// Two quarters of a, followed by two of b.
inline __m512 quarters(__m512 a, __m512 b, unsigned which) {
  float from[32], to[16];
  std::memcpy(from, &a, sizeof(a));
  std::memcpy(from + 16, &b, sizeof(b));
  for (unsigned i = 0; i < 16; ++i) to[i] = from[i / 8 * 16 + (which >> 2 * (i / 4) & 3U) * 4 + i % 4];
  std::memcpy(&a, to, sizeof(to));
  return a;
}
inline __m128i narrow8(__m512i v) {
  return each_lane<std::int32_t, __m128i>(v, [](std::int32_t i) { return static_cast<std::int8_t>(i); });
}
inline float add_lanes(__m512 v) {
  float lanes[16];
  std::memcpy(lanes, &v, sizeof(lanes));
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace ferry::test

#define _mm512_cvtph_ps ferry::test::cvtph
#define _mm512_cvtepu16_epi32 ferry::test::widen16
#define _mm512_cvtepu8_epi32 ferry::test::widen8
#define _mm512_cvtepi8_epi32 ferry::test::widen8_signed
#define _mm512_cvtepi32_ps ferry::test::to_floats
#define _mm512_cvtepi32_epi8 ferry::test::narrow8
#define _mm512_permute_ps ferry::test::permute
#define _mm512_shuffle_f32x4 ferry::test::quarters
#define __mmask16 simde__mmask16
#define __mmask64 simde__mmask64
#define _mm512_reduce_add_ps ferry::test::add_lanes
