/// @file
/// Sets of experts as bits.
#pragma once
#include <bit>

#include "ferry/storage.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// Which bit of `word`, not 0, is the lowest that is set.
FERRY_HD inline std::uint32_t lowest_bit(std::uint64_t word) noexcept {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__ffsll(static_cast<long long>(word)) - 1);
#else
  return static_cast<std::uint32_t>(std::countr_zero(word));
#endif
}
FERRY_HD inline std::uint32_t bits_of(std::uint64_t word) noexcept {
#if defined(__CUDA_ARCH__)
  return static_cast<std::uint32_t>(__popcll(word));
#else
  return static_cast<std::uint32_t>(std::popcount(word));
#endif
}

/// A number of sets of the experts 0 to E - 1. O(1), walking through a set O(E / 64 + its size).
/// State: 8 bytes for each 64 experts of a set.
class ExpertSets {
 public:
  void reserve(Carver& carve, std::uint32_t sets, std::uint32_t experts) {
    words_each_ = (experts + 63U) / 64U;
    carve(words_, std::size_t{sets} * words_each_);
  }

  FERRY_HD void clear(std::uint32_t set) noexcept {
    for (std::uint32_t w = 0; w < words_each_; ++w) words_[set * words_each_ + w] = 0;
  }
  FERRY_HD bool has(std::uint32_t set, std::uint16_t expert) const noexcept {
    return (words_[set * words_each_ + expert / 64U] >> expert % 64U & 1U) != 0;
  }
  FERRY_HD void add(std::uint32_t set, std::uint16_t expert) noexcept {
    words_[set * words_each_ + expert / 64U] |= std::uint64_t{1} << expert % 64U;
  }
  FERRY_HD void remove(std::uint32_t set, std::uint16_t expert) noexcept {
    words_[set * words_each_ + expert / 64U] &= ~(std::uint64_t{1} << expert % 64U);
  }

  FERRY_HD std::uint32_t size(std::uint32_t set) const noexcept {
    const std::uint64_t* const words = words_.data() + std::size_t{set} * words_each_;
    std::uint32_t n = 0;
    for (std::uint32_t w = 0; w < words_each_; ++w) n += bits_of(words[w]);
    return n;
  }
  /// Experts 64 w to 64 w + 63 of a set, one a bit.
  FERRY_HD std::uint64_t word(std::uint32_t set, std::uint32_t w) const noexcept {
    return words_[set * words_each_ + w];
  }
  /// How many of a set are in a set of `others`, which are of as many experts.
  FERRY_HD std::uint32_t common(std::uint32_t set, const ExpertSets& others, std::uint32_t other) const noexcept {
    const std::uint64_t* const words = words_.data() + std::size_t{set} * words_each_;
    const std::uint64_t* const theirs = others.words_.data() + std::size_t{other} * words_each_;
    std::uint32_t n = 0;
    for (std::uint32_t w = 0; w < words_each_; ++w) n += bits_of(words[w] & theirs[w]);
    return n;
  }

  /// Calls `f(expert)` for those of a set, in ascending order.
  template <class F>
  FERRY_HD void for_each(std::uint32_t set, F&& f) const noexcept {
    for (std::uint32_t w = 0; w < words_each_; ++w) {
      for (std::uint64_t word = words_[set * words_each_ + w]; word != 0; word &= word - 1) {
        f(static_cast<std::uint16_t>(w * 64U + lowest_bit(word)));
      }
    }
  }

 private:
  Array<std::uint64_t> words_;  ///< [sets, experts / 64]
  std::uint32_t words_each_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
