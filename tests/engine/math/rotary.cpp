// Angles by their definition.
#include "math/rotary.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace ferry::engine;

TEST_CASE("texts up to the length where long ones begin are turned by the frequencies of short ones") {
  Rope rope;
  rope.width = 4;
  rope.frequency = {1, 0.25};
  rope.long_frequency = {0.5, 0.125};
  rope.long_from = 8;
  rope.long_scale = 2;
  for (const bool neighbours : {false, true}) {
    rope.neighbours = neighbours;
    Rotary rotary(rope);
    for (const std::uint32_t length : {7U, 8U, 9U}) {
      CAPTURE(length);
      const bool is_long = length == 9;
      rotary.set(3, length);
      float columns[4] = {1, 2, 3, 4};
      rotary.turn(columns);
      for (int pair = 0; pair < 2; ++pair) {
        const int first = neighbours ? 2 * pair : pair, second = neighbours ? first + 1 : pair + 2;
        const double angle = 3 * (is_long ? rope.long_frequency : rope.frequency)[static_cast<std::size_t>(pair)];
        const double x = first + 1, y = second + 1, scale = is_long ? 2 : 1;
        CHECK(columns[first] == doctest::Approx(scale * (x * std::cos(angle) - y * std::sin(angle))).epsilon(1e-5));
        CHECK(columns[second] == doctest::Approx(scale * (y * std::cos(angle) + x * std::sin(angle))).epsilon(1e-5));
      }
    }
  }
}
