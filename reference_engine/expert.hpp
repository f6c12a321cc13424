/// @file
/// How routed experts lie in memory.
#pragma once
#include <cstdint>

#include "ferry/codec/packed.hpp"
#include "ferry/model.hpp"
#include "safetensors.hpp"

namespace ferry::engine {

/// How one expert lies in memory, as it crosses a link and sits in a slot:
/// gate [width, hidden], up [width, hidden], down [hidden, width], one after another.
///
/// At `full` in the checkpoint's type; at int8, int4 and int2 each as `packed` says, rounded to the nearest.
struct ExpertLayout {
  std::uint32_t hidden = 0, width = 0;
  DType dtype = DType::bf16;  ///< at `full`

  /// 0 for `skip`.
  [[nodiscard]] std::uint64_t bytes(Precision p = Precision::full) const {
    if (p == Precision::skip) return 0;
    if (p == Precision::full) return std::uint64_t{3} * hidden * width * (dtype == DType::f32 ? 4 : 2);
    return packed(0, p).bytes() + packed(1, p).bytes() + packed(2, p).bytes();
  }
  /// Matrix 0, 1 or 2, gate, up or down, at int8, int4 or int2.
  [[nodiscard]] PackedLayout packed(int part, Precision p) const {
    return {part == 2 ? hidden : width, part == 2 ? width : hidden, code_bits(p)};
  }
};

}  // namespace ferry::engine
