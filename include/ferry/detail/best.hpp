/// @file
/// The best k of a row of scores.
#pragma once
#if defined(__AVX2__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Strictly before in the order that every policy uses: equal scores keep the lower index first (the earlier one is
/// not displaced), a NaN is below everything.
FERRY_HD constexpr bool ranks_above(float a, float b) noexcept {
  return a > b || (b != b && a == a);
}

/// A count below 2^47 and an index as one positive number: the larger key ranks above, no two of a row are equal. 0 for
/// a count of 0.
FERRY_HD constexpr std::int64_t rank_key(std::uint64_t count, std::uint32_t index) noexcept {
  return count == 0 ? 0 : static_cast<std::int64_t>(count << 16U | (0xffffU - index));
}
/// The same for a score; never 0, and its upper part, without the index, is not 0 either.
FERRY_HD inline std::int64_t rank_key(float score, std::uint32_t index) noexcept {
  const float s = score + 0.0F;  // no negative zero
  auto bits = __builtin_bit_cast(std::uint32_t, s);
  bits ^= (bits >> 31U) != 0 ? 0xffffffffU : 0x80000000U;  // now they ascend as the scores do
  if (s != s) bits = 1;                                    // which no other score has
  return static_cast<std::int64_t>(std::uint64_t{bits} << 16U | (0xffffU - index));
}
FERRY_HD inline std::uint32_t index_of(std::int64_t key) noexcept {
  return 0xffffU - static_cast<std::uint32_t>(key & 0xffff);
}

/// Up to 64 keys in eight columns, each with its largest remembered: the largest of all, one after another, without a
/// branch that depends on the scores. Written so that compilers make vectors of `fill` and registers of the rest.
class KeyColumns {
 public:
  static constexpr std::uint32_t columns = 8, rows = 8, capacity = columns * rows;

  /// `values[0 .. n)` are those of indices `first` and following.
  template <class T>
  FERRY_HD FERRY_HOT void fill(const T* values, std::uint32_t n, std::uint32_t first) noexcept {
    if (n == capacity) {  // a loop of known length is a few vectors
      for (std::uint32_t i = 0; i < capacity; ++i) key_[i] = rank_key(values[i], first + i);
    } else {
      for (std::uint32_t i = 0; i < n; ++i) key_[i] = rank_key(values[i], first + i);
      for (std::uint32_t i = n; i < capacity; ++i) key_[i] = 0;
    }
    std::int64_t top[columns];
    for (std::uint32_t c = 0; c < columns; ++c) top[c] = key_[c];
    for (std::uint32_t r = 1; r < rows; ++r) {
      for (std::uint32_t c = 0; c < columns; ++c) top[c] = larger(top[c], key_[r * columns + c]);
    }
    top0_ = top[0], top1_ = top[1], top2_ = top[2], top3_ = top[3];
    top4_ = top[4], top5_ = top[5], top6_ = top[6], top7_ = top[7];
  }

  /// Removes the largest key that is left, and returns it; 0: none is left.
  FERRY_HD FERRY_HOT std::int64_t take() noexcept {
    const std::int64_t largest =
        larger(larger(larger(top0_, top1_), larger(top2_, top3_)), larger(larger(top4_, top5_), larger(top6_, top7_)));
    // Only the keys below it are left of its column. As distances modulo 2^64, the nearest of these is the largest, and
    // those of keys above it, which are gone, are small.
    const std::int64_t* column = key_ + index_of(largest) % columns;
    const auto nearer = [](std::uint64_t a, std::uint64_t b) { return a > b ? a : b; };
    const auto below = [&](std::uint32_t r) { return static_cast<std::uint64_t>(column[r * columns] - largest); };
    const auto distance =
        static_cast<std::int64_t>(nearer(nearer(nearer(below(0), below(1)), nearer(below(2), below(3))),
                                         nearer(nearer(below(4), below(5)), nearer(below(6), below(7)))));
    const std::int64_t next = distance < 0 ? largest + distance : 0;
    top0_ = top0_ == largest ? next : top0_;
    top1_ = top1_ == largest ? next : top1_;
    top2_ = top2_ == largest ? next : top2_;
    top3_ = top3_ == largest ? next : top3_;
    top4_ = top4_ == largest ? next : top4_;
    top5_ = top5_ == largest ? next : top5_;
    top6_ = top6_ == largest ? next : top6_;
    top7_ = top7_ == largest ? next : top7_;
    return largest;
  }

 private:
  FERRY_HD static constexpr std::int64_t larger(std::int64_t a, std::int64_t b) noexcept { return a > b ? a : b; }

  std::int64_t key_[capacity];  ///< 0: none
  std::int64_t top0_, top1_, top2_, top3_, top4_, top5_, top6_, top7_;
};

#if defined(__AVX2__) && !defined(__CUDACC__)
/// The same for scores, with half the instructions: eight vectors of keys without their indices. The lowest index among
/// equal keys is the first of a mask's bits.
class ScoreVectors {
 public:
  static constexpr std::uint32_t capacity = 64;

  /// `scores[0 .. n)` are those of indices `first` and following.
  FERRY_HOT void fill(const float* scores, std::uint32_t n, std::uint32_t first) noexcept {
    first_ = first, equal_ = 0;
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
#pragma GCC unroll 8
    for (std::uint32_t v = 0; v < 8; ++v) {
      if (8 * (v + 1) <= n) {
        key_[v] = keys(_mm256_loadu_ps(scores + 8 * v));
      } else if (8 * v < n) {
        const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n - 8 * v)), lanes);
        key_[v] = _mm256_and_si256(keys(_mm256_maskload_ps(scores + 8 * v, there)), there);
      } else {
        key_[v] = _mm256_setzero_si256();
      }
    }
  }

  /// Removes the largest key that is left, and returns it as `rank_key` has it; 0: none is left.
  FERRY_HOT std::int64_t take() noexcept {
    if (equal_ == 0) find_largest();
    const auto index = static_cast<std::uint32_t>(__builtin_ctzll(equal_));
    equal_ &= equal_ - 1;
    return largest_ == 0 ? 0 : static_cast<std::int64_t>(std::uint64_t{largest_} << 16U | (0xffffU - first_ - index));
  }

 private:
  /// As `rank_key`.
  FERRY_HOT static __m256i keys(__m256 scores) noexcept {
    const __m256 s = _mm256_add_ps(scores, _mm256_setzero_ps());
    const __m256i bits = _mm256_castps_si256(s), sign = _mm256_set1_epi32(INT32_MIN);
    const __m256i ascending = _mm256_xor_si256(bits, _mm256_or_si256(_mm256_srai_epi32(bits, 31), sign));
    const __m256i one = _mm256_set1_epi32(1), none = _mm256_castps_si256(_mm256_cmp_ps(s, s, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(ascending, one, none);
  }

  FERRY_HOT void find_largest() noexcept {
    const auto larger = [](__m256i a, __m256i b) { return _mm256_max_epu32(a, b); };
    const __m256i columns = larger(larger(larger(key_[0], key_[1]), larger(key_[2], key_[3])),
                                   larger(larger(key_[4], key_[5]), larger(key_[6], key_[7])));
    __m256i all = larger(columns, _mm256_permute2x128_si256(columns, columns, 1));
    all = larger(all, _mm256_shuffle_epi32(all, 0b01001110));
    all = larger(all, _mm256_shuffle_epi32(all, 0b10110001));  // in each lane
    largest_ = static_cast<std::uint32_t>(_mm256_cvtsi256_si32(all));
    equal_ = remove<0>(all) | remove<4>(all) << 32U;
  }

  /// Removes the keys of four vectors that are equal to `key`, in each lane. Returns a bit for each, in order.
  template <std::uint32_t v>
  FERRY_HOT std::uint64_t remove(__m256i key) noexcept {
    const __m256i a = _mm256_cmpeq_epi32(key_[v], key), b = _mm256_cmpeq_epi32(key_[v + 1], key);
    const __m256i c = _mm256_cmpeq_epi32(key_[v + 2], key), d = _mm256_cmpeq_epi32(key_[v + 3], key);
    key_[v] = _mm256_andnot_si256(a, key_[v]), key_[v + 1] = _mm256_andnot_si256(b, key_[v + 1]);
    key_[v + 2] = _mm256_andnot_si256(c, key_[v + 2]), key_[v + 3] = _mm256_andnot_si256(d, key_[v + 3]);
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    const __m256i in_order = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(in_order));
  }

  __m256i key_[8];  ///< of 32 bits; 0: none
  std::uint32_t first_ = 0, largest_ = 0;
  std::uint64_t equal_ = 0;  ///< those that have the largest key and were not taken
};
/// What takes the best of a row of these.
template <class T>
using BestTaker = std::conditional_t<std::is_same_v<T, float>, ScoreVectors, KeyColumns>;
#else
template <class T>
using BestTaker = KeyColumns;
#endif

/// Puts the k best of `values[0 .. n)`, best first, by `put(rank, index)`; `at(rank)` gives back what was put. Counts of 0
/// are left out. Returns how many were put.
template <class T, class Put, class At>
FERRY_HD std::uint32_t best_by_columns(const T* values, std::uint32_t n, std::uint32_t k, const Put& put,
                                       const At& at) noexcept {
  constexpr std::uint32_t most = BestTaker<T>::capacity;
  BestTaker<T> keys;
  keys.fill(values, n < most ? n : most, 0);
  std::uint32_t found = 0;
  for (; found < k && found < most; ++found) {
    const std::int64_t key = keys.take();
    if (key == 0) break;
    put(found, index_of(key));
  }
  const auto key_at = [&](std::uint32_t rank) { return rank_key(values[at(rank)], at(rank)); };
  for (std::uint32_t first = most; first < n; first += most) {
    keys.fill(values + first, n - first < most ? n - first : most, first);
    std::int64_t key = keys.take();
    for (; key != 0 && (found < k || key > key_at(k - 1)); key = keys.take()) {
      std::uint32_t rank = found < k ? found++ : k - 1;
      for (; rank > 0 && key > key_at(rank - 1); --rank) put(rank, at(rank - 1));
      put(rank, index_of(key));
    }
  }
  return found;
}

/// Sets `best[0 .. k)` to the k best of `scores[0 .. n)`, best first, without weights; k <= n.
/// O(n + k) steps for up to 64 scores; every further 64 take one more for each of their scores among the best so far.
FERRY_HD inline void best_of(const float* scores, std::uint32_t n, std::uint32_t k, Route* best) noexcept {
  if (k == 0) return;
  const auto put = [&](std::uint32_t rank, std::uint32_t e) { best[rank] = {static_cast<std::uint16_t>(e)}; };
  if (n > 16) {
    best_by_columns(scores, n, k, put, [&](std::uint32_t rank) { return best[rank].expert; });
    return;
  }
  std::uint32_t found = 0;  // by insertion: few scores enter the list
  for (std::uint32_t e = 0; e < n; ++e) {
    if (found == k && !ranks_above(scores[e], scores[best[k - 1].expert])) continue;
    std::uint32_t at = found < k ? found++ : k - 1;
    for (; at > 0 && ranks_above(scores[e], scores[best[at - 1].expert]); --at) put(at, best[at - 1].expert);
    put(at, e);
  }
}

/// Sets the first of `best` to the k largest of `counts[0 .. n)` that are not 0, largest first, and returns how many.
/// Counts below 2^47. O(n + k) as `best_of`.
FERRY_HD inline std::uint32_t most_of(const std::uint64_t* counts, std::uint32_t n, std::uint32_t k,
                                      std::uint16_t* best) noexcept {
  if (k == 0) return 0;
  return best_by_columns(
      counts, n, k, [&](std::uint32_t rank, std::uint32_t e) { best[rank] = static_cast<std::uint16_t>(e); },
      [&](std::uint32_t rank) { return best[rank]; });
}

}  // namespace ferry::inline FERRY_ABI::detail
