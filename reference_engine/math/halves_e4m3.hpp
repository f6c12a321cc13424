// Floats of 8 bits as halves, for files that include product_kernel.hpp and have AVX2's intrinsics.
#pragma once
#include "math/product_kernel.hpp"

namespace ferry::engine {
namespace {

/// 16 floats (E4M3), divided by 2^8: their exponents' biases differ by 15 - 7. Halves that are subnormal become floats
/// without a detour, which subnormal floats would take.
[[FERRY_LANES_TARGET gnu::always_inline]] inline __m256i halves_e4m3(const std::byte* at) {
  const __m256i codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  const __m256i largest = _mm256_set1_epi16(0x3f80), sign = _mm256_set1_epi16(-0x8000);
  const __m256i magnitudes = _mm256_and_si256(_mm256_slli_epi16(codes, 7), largest);
  const __m256i signs = _mm256_and_si256(_mm256_slli_epi16(codes, 8), sign);
  const __m256i none = _mm256_cmpeq_epi16(magnitudes, largest);
  return _mm256_blendv_epi8(_mm256_or_si256(magnitudes, signs), _mm256_set1_epi16(0x7e00), none);
}

}  // namespace
}  // namespace ferry::engine
