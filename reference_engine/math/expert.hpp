/// @file
/// How routed experts lie in memory.
#pragma once
#include <cstdint>
#include <string>
#include <variant>

#include "checkpoint/model_config.hpp"
#include "checkpoint/tensor.hpp"
#include "ferry/codec/packed.hpp"
#include "ferry/codec/pass_through.hpp"
#include "ferry/model.hpp"
#include "math/packed_product.hpp"

namespace ferry::engine {

/// How one expert lies in memory, as it crosses a link and sits in a slot: gate [width, hidden], up [width, hidden],
/// down [hidden, width], one after another; behind them, if it has biases, those of gate [width], up [width] and down [hidden]
/// as floats; and last, if it has one, the scale that multiplies its output.
///
/// At `full` the matrices are as the checkpoint has them, numbers or blocks; at int8, int4 and int2 each is as `packed` says.
struct ExpertLayout {
  std::uint32_t hidden = 0, width = 0;
  DType dtype = DType::bf16;  ///< at `full`
  std::uint32_t group = 64;   ///< weights with one scale and minimum: 32, 64 or 128
  bool biased = false, scaled = false;
  Glu glu{};                       ///< what is computed of them
  DType up_type = DType::other;    ///< at `full`; other: dtype
  DType down_type = DType::other;  ///< likewise

  /// 0 for `skip`.
  [[nodiscard]] std::uint64_t bytes(Precision p = Precision::full) const {
    if (p == Precision::skip) return 0;
    return part_at(3, p) + behind_bytes();
  }
  [[nodiscard]] std::uint64_t part_bytes(int part, Precision p) const {
    return p == Precision::full ? bytes_of(plain(part)) : packed(part, p).bytes();
  }
  /// Of biases and scale, behind the matrices.
  [[nodiscard]] std::uint64_t behind_bytes() const {
    return ((biased ? std::uint64_t{2} * width + hidden : 0) + (scaled ? 1 : 0)) * sizeof(float);
  }
  /// The byte at which matrix `part` begins; for part 3, the byte at which what is behind the matrices begins.
  [[nodiscard]] std::uint64_t part_at(int part, Precision p) const {
    return part == 0 ? 0 : part_at(part - 1, p) + part_bytes(part - 1, p);
  }
  /// The layout of matrix 0, 1 or 2 (gate, up or down) at int8, int4 or int2.
  [[nodiscard]] PackedLayout packed(int part, Precision p) const {
    return {part == 2 ? hidden : width, part == 2 ? width : hidden, code_bits(p), group};
  }
  /// And at `full`.
  [[nodiscard]] PlainLayout plain(int part) const {
    return plain_layout(type(part), part == 2 ? hidden : width, part == 2 ? width : hidden);
  }
  [[nodiscard]] DType type(int part) const {
    const DType own = part == 0 ? dtype : part == 1 ? up_type : down_type;
    return own == DType::other ? dtype : own;
  }
  /// Whether all of it is plain numbers of one type.
  [[nodiscard]] bool plain_numbers() const {
    return std::holds_alternative<PassThroughLayout>(plain(0)) && type(1) == dtype && type(2) == dtype;
  }
  /// The same at any precision.
  [[nodiscard]] StoredLayout stored(int part, Precision p) const {
    if (p != Precision::full) return packed(part, p);
    return std::visit([](const auto& l) -> StoredLayout { return l; }, plain(part));
  }
  /// "int4"; `full` by its type: "bf16".
  [[nodiscard]] std::string name(Precision p) const {
    if (p != Precision::full) return "int" + std::to_string(code_bits(p));
    const std::string first = name_of(type(0));
    return type(1) == dtype && type(2) == dtype ? first : first + "+" + name_of(type(type(1) == dtype ? 2 : 1));
  }
};

}  // namespace ferry::engine
