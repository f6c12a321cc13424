/// @file
/// The best k of a row of scores.
#pragma once
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
/// The same for a score; never 0.
FERRY_HD inline std::int64_t rank_key(float score, std::uint32_t index) noexcept {
  const float s = score + 0.0F;  // no negative zero
  auto bits = __builtin_bit_cast(std::uint32_t, s);
  bits ^= (bits >> 31U) != 0 ? 0xffffffffU : 0x80000000U;  // now they ascend as the scores do
  if (s != s) bits = 0;
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

/// Puts the k best of `values[0 .. n)`, best first, by `put(rank, index)`; `at(rank)` gives back what was put. Counts of 0
/// are left out. Returns how many were put.
template <class T, class Put, class At>
FERRY_HD std::uint32_t best_by_columns(const T* values, std::uint32_t n, std::uint32_t k, const Put& put,
                                       const At& at) noexcept {
  constexpr std::uint32_t most = KeyColumns::capacity;
  KeyColumns keys;
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
