/// @file
/// How far long work has got.
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

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

/// Says so on standard error, every other second and at the end.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  void show(std::uint64_t done, std::uint64_t all) {
    if (done < all && now() - shown_ < std::chrono::seconds(2)) return;
    shown_ = now();
    fmt::print(stderr, "{}: {}\n", what_, how_far(begin_, done, all));
  }

 private:
  std::string what_;
  Moment begin_ = now(), shown_ = begin_;
};

}  // namespace ferry::bench
