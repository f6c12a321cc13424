// Parts of blocks in vectors, for files that define FERRY_LANES_TARGET and have AVX2's intrinsics.
#pragma once
#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

/// 16 numbers of E4M3 as halves, divided by 2^8, since the biases of their exponents differ by 15 - 7. Subnormal halves become
/// floats without the detour that subnormal floats would take.
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline __m256i halves_e4m3(const std::byte* at) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  const __m256i largest = _mm256_set1_epi16(0x3f80), sign = _mm256_set1_epi16(-0x8000);
  const __m256i magnitudes = _mm256_and_si256(_mm256_slli_epi16(codes, 7), largest);
  const __m256i signs = _mm256_and_si256(_mm256_slli_epi16(codes, 8), sign);
  const __m256i none = _mm256_cmpeq_epi16(magnitudes, largest);
  return _mm256_blendv_epi8(_mm256_or_si256(magnitudes, signs), _mm256_set1_epi16(0x7e00), none);
}

/// The 8 scales of a block of q4_k or q5_k, and behind them its 8 minima.
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline __m128i k_scales_and_minima(const std::byte* block) {
  const int six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;                      // bits of each byte
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 4));  // and what follows
  const __m128i low = _mm_srlv_epi32(_mm_shuffle_epi32(packed, 0b10'01'10'00), _mm_setr_epi32(0, 0, 0, 4));
  const __m128i high = _mm_srli_epi32(_mm_shuffle_epi32(packed, 0b01'00'00'00), 2);
  return _mm_or_si128(_mm_and_si128(low, _mm_setr_epi32(six, four, six, four)),
                      _mm_and_si128(high, _mm_setr_epi32(0, two, 0, two)));
}

/// The 16 scales of a block of q3_k, less 32, each a signed byte.
[[FERRY_LANES_TARGET FERRY_LANES_INLINE]] inline __m128i q3_k_scales(const std::byte* block) {
  const __m128i packed =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 94));  // from two codes ahead of them on
  const __m128i low = _mm_shuffle_epi8(packed, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
  const __m128i high = _mm_shuffle_epi32(_mm_srli_si128(packed, 10), 0);
  const __m128i lows = _mm_and_si128(_mm_blend_epi16(low, _mm_srli_epi16(low, 4), 0xf0), _mm_set1_epi8(15));
  const __m128i highs = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
  return _mm_sub_epi8(_mm_or_si128(lows, _mm_slli_epi16(highs, 4)), _mm_set1_epi8(32));
}

}  // namespace
}  // namespace ferry::engine
