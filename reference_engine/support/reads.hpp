/// @file
/// Reads that may never come back: of a disk or a network's folder that hangs.
#pragma once
#include "support/clock.hpp"

namespace ferry::engine {

/// A read is under way while this lives.
class ReadUnderWay {
 public:
  ReadUnderWay() noexcept;
  ~ReadUnderWay();
  ReadUnderWay(const ReadUnderWay&) = delete;
  ReadUnderWay& operator=(const ReadUnderWay&) = delete;

  /// A part of one has come.
  static void came() noexcept;
};

/// Whether reads are under way of which nothing has come for so long. A signal's handler may ask.
bool reads_hang(Nanoseconds so_long) noexcept;

}  // namespace ferry::engine
