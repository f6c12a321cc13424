/// @file
/// The clock of every span and time.
#pragma once
#include <chrono>

#include "ferry/model.hpp"

namespace ferry::engine {

inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace ferry::engine
