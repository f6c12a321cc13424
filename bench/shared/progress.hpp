/// @file
/// The progress of long work as words within a longer line. (support/progress.hpp has progress as a line of its own.)
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace ferry::bench {

using Moment = std::chrono::steady_clock::time_point;

inline Moment now() {
  return std::chrono::steady_clock::now();
}

/// "3 of 7, about 12 s left".
inline std::string how_far(Moment begin, std::uint64_t done, std::uint64_t all) {
  const double each_s =
      std::chrono::duration<double>(now() - begin).count() / static_cast<double>(done == 0 ? 1 : done);
  return fmt::format("{} of {}, about {:.0f} s left", done, all, each_s * static_cast<double>(all - done));
}

}  // namespace ferry::bench
