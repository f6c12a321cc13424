/// @file
/// The median of measured times.
#pragma once
#include <algorithm>
#include <vector>

namespace ferry::bench {

/// The upper of the two middle values if their number is even. Changes the order of `of`.
inline double median(std::vector<double>& of) {
  const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

}  // namespace ferry::bench
