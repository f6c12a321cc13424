/// @file
/// How far a long piece of work is.
#pragma once
#include <cstdint>
#include <string>

#include "ferry/model.hpp"

namespace ferry::engine {

/// One line on standard error that says how far a long piece of work is and how long it will still take: in place on a
/// terminal, otherwise a line every two seconds.
class ProgressLine {
 public:
  /// `what`: "prefill", "tokens"; nothing is shown before `quiet` has passed.
  explicit ProgressLine(std::string what, Nanoseconds quiet = 500'000'000);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::uint64_t done, std::uint64_t total) {
    show(done, total, static_cast<double>(done) / static_cast<double>(total));
  }
  /// `share` of the work, where what is counted is not all alike.
  void show(std::uint64_t done, std::uint64_t total, double share);

 private:
  std::string what_;
  bool terminal_, open_ = false;
  Nanoseconds begin_, shown_;
};

}  // namespace ferry::engine
