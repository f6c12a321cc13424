/// @file
/// Text that is safe in HTML, and numbers and units that people read.
#pragma once
#include <string>

namespace ferry::engine::html {

/// Text for HTML, in elements and in quoted attributes: markup characters become entities; control characters and what
/// is no UTF-8 become U+FFFD.
std::string escape(const std::string& text);

/// At most so many characters; the last is an ellipsis if some were cut.
std::string shorten(const std::string& text, std::size_t most);

/// A number with commas between thousands; beyond a billion with an exponent.
std::string number(double v, int decimals);

/// Decimals with which such a number shows three digits.
inline int decimals_for(double v) {
  return v >= 100 ? 0 : v >= 10 ? 1 : 2;
}

struct Unit {
  const char* name;
  double size;
};
inline Unit time_unit(double largest_s) {
  return largest_s >= 1 ? Unit{"s", 1} : largest_s >= 1e-3 ? Unit{"ms", 1e-3} : Unit{"µs", 1e-6};
}
inline Unit byte_unit(double largest) {
  constexpr double ki = 1024;
  return largest >= ki * ki * ki ? Unit{"GiB", ki * ki * ki}
         : largest >= ki * ki    ? Unit{"MiB", ki * ki}
                                 : Unit{"KiB", ki};
}

}  // namespace ferry::engine::html
