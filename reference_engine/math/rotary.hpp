/// @file
/// Turns queries and keys by their position.
#pragma once
#include <cstdint>
#include <vector>

#include "checkpoint/rope.hpp"

namespace ferry::engine {

/// Rotary embedding of one token at a time: its angles are computed once for all its heads.
class Rotary {
 public:
  explicit Rotary(const Rope& rope);

  [[nodiscard]] std::uint32_t width() const { return static_cast<std::uint32_t>(2 * frequency_.size()); }
  /// Sets the angles for a token at this position, of a text that may become `length` tokens long.
  void set(std::uint32_t position, std::uint32_t length);
  /// Turns [width] columns.
  void turn(float* columns) const;

 private:
  std::vector<float> frequency_, long_frequency_;  // [width / 2]
  std::vector<float> cosine_, sine_;               // likewise, of the token
  float scale_, long_scale_;
  std::uint32_t long_from_;
  bool neighbours_;
};

}  // namespace ferry::engine
