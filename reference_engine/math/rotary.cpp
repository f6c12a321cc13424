#include "math/rotary.hpp"

#include <cmath>

namespace ferry::engine {

Rotary::Rotary(const Rope& rope)
    : frequency_(rope.frequency.begin(), rope.frequency.end()),
      long_frequency_(rope.long_frequency.begin(), rope.long_frequency.end()),
      cosine_(frequency_.size()),
      sine_(frequency_.size()),
      scale_(static_cast<float>(rope.scale)),
      long_scale_(static_cast<float>(rope.long_scale)),
      long_from_(rope.long_from),
      neighbours_(rope.neighbours) {}

void Rotary::set(std::uint32_t position, std::uint32_t length) {
  const bool is_long = long_from_ > 0 && length > long_from_;
  const std::vector<float>& frequency = is_long ? long_frequency_ : frequency_;
  const float scale = is_long ? long_scale_ : scale_;
  for (std::size_t i = 0; i < frequency.size(); ++i) {
    const float angle = static_cast<float>(position) * frequency[i];
    cosine_[i] = std::cos(angle) * scale;
    sine_[i] = std::sin(angle) * scale;
  }
}

void Rotary::turn(float* columns) const {
  const std::size_t half = cosine_.size();
  for (std::size_t i = 0; i < half; ++i) {
    float& x = columns[neighbours_ ? 2 * i : i];
    float& y = columns[neighbours_ ? 2 * i + 1 : i + half];
    const float a = x, b = y;
    x = a * cosine_[i] - b * sine_[i];
    y = b * cosine_[i] + a * sine_[i];
  }
}

}  // namespace ferry::engine
