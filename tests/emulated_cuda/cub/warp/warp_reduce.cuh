/// @file
/// cub::WarpReduce, which sums in CUB's order: neighbours first, then pairs of pairs. The lanes meet once for each reduction.
#pragma once
#include <cstdint>
#include <limits>

#include "../../cuda_runtime.h"

namespace ferry::test::emulated {

/// Combines the lanes' values for the first lane of the mask, whose lanes are adjacent. The others get NaN, if T has it, where
/// CUB gives them some partial result.
template <class T, class Combine>
T reduce_lanes(std::uint32_t mask, T value, Combine combine) {
  struct Part {
    T value;
    Combine* combine;
  };
  Part mine{value, &combine};
  meet_warp(Meeting::reduction, mask, &mine, [](void* const* data, std::uint32_t participants) {
    const auto first = static_cast<std::uint32_t>(__builtin_ctz(participants));
    const auto n = static_cast<std::uint32_t>(__builtin_popcount(participants));
    Combine& with = *static_cast<Part*>(data[first])->combine;
    T values[lanes];
    values[0] = static_cast<Part*>(data[first])->value;
    for (std::uint32_t i = 1; i < n; ++i) values[i] = static_cast<Part*>(data[first + i])->value;
    for (std::uint32_t step = 1; step < n; step *= 2) {
      for (std::uint32_t i = 0; i + step < n; i += 2 * step) values[i] = with(values[i], values[i + step]);
    }
    static_cast<Part*>(data[first])->value = values[0];
  });
  if constexpr (std::numeric_limits<T>::has_quiet_NaN) {
    if ((mask & ((1U << thread_number() % lanes) - 1)) != 0) return std::numeric_limits<T>::quiet_NaN();
  }
  return mine.value;
}

struct Plus {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
};

}  // namespace ferry::test::emulated

namespace cub {

template <class T, int logical_threads = 32>
class WarpReduce {
  static_assert(logical_threads >= 1 && logical_threads <= 32 && (logical_threads & (logical_threads - 1)) == 0);

 public:
  struct TempStorage {};
  explicit WarpReduce(TempStorage& /*storage*/) {}

  T Sum(T value) { return Reduce(value, ferry::test::emulated::Plus{}); }

  template <class Combine>
  T Reduce(T value, Combine combine) {
    const std::uint32_t first = ferry::test::emulated::thread_number() % 32 & ~(logical_threads - 1U);
    return ferry::test::emulated::reduce_lanes((~0U >> (32 - logical_threads)) << first, value, combine);
  }
};

}  // namespace cub
