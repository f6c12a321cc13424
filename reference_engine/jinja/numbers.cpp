#include "jinja/numbers.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "jinja/operators.hpp"
#include "jinja/text_methods.hpp"

namespace ferry::engine::jinja {
namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  return c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}

/// The text without underscores between digits; none if there are others.
std::optional<std::string> without_underscores(std::string_view text, std::int64_t base) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || digit_of(text[i - 1]) >= base || digit_of(text[i + 1]) >= base) {
      return std::nullopt;
    }
  }
  return out;
}

/// Takes a prefix 0x, 0o or 0b if `base` allows it. Returns the base.
std::int64_t take_prefix(std::string_view& digits, std::int64_t base) {
  const char letter = digits.size() > 1 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
  const std::int64_t said = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (said != 0 && (base == 0 || base == said)) {
    digits = digits.substr(digits.size() > 2 && digits[2] == '_' ? 3 : 2);
    return said;
  }
  if (base != 0) return base;
  const bool padded = digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("0_") != std::string_view::npos;
  return padded ? -1 : 10;  // Python refuses 010, which is 8 in C
}

double power_of_ten(std::int64_t exponent) {
  return std::pow(10.0, static_cast<double>(exponent));
}

double rounded_real(double number, std::int64_t digits) {
  if (!std::isfinite(number) || digits > 323) return number;
  if (digits < -308) return std::copysign(0.0, number);
  if (digits < 0) return std::nearbyint(number / power_of_ten(-digits)) * power_of_ten(-digits);
  return parse_real(fmt::format("{:.{}f}", number, digits)).value_or(number);
}

/// Rounds to tens, hundreds and so on.
Value rounded_whole(Rendering& run, std::int64_t number, std::int64_t digits) {
  if (digits >= 0) return number;
  if (digits < -18) return std::int64_t{0};
  std::int64_t unit = 1;
  for (; digits < 0; ++digits) unit *= 10;
  std::int64_t rest = number % unit, down = number - rest;
  if (rest < 0) {
    rest += unit;
    if (__builtin_sub_overflow(down, unit, &down)) run.fail("round of such a number, expected a smaller one");
  }
  const bool up = rest > unit - rest || (rest == unit - rest && (down / unit) % 2 != 0);
  return up ? calculate(run, Arithmetic::add, down, unit) : Value(down);
}

}  // namespace

std::optional<std::int64_t> parse_whole(Rendering& run, std::string_view text, std::int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  text = stripped(run, text, nullptr, Side::both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text = text.substr(1);
  base = take_prefix(text, base);
  const std::optional<std::string> digits = without_underscores(text, base);
  if (base < 2 || !digits || digits->empty()) return std::nullopt;
  for (const char c : *digits) {
    if (digit_of(c) >= base) return std::nullopt;
  }
  std::int64_t value = 0;
  for (const char c : *digits) {
    const std::int64_t digit = negative ? -digit_of(c) : digit_of(c);
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
      run.fail("a whole number needs more than 64 bits, expected a smaller one");
    }
  }
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\n\r\f\v").find(text.front()) != std::string_view::npos) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::string_view(" \t\n\r\f\v").find(text.back()) != std::string_view::npos) {
    text.remove_suffix(1);
  }
  const std::optional<std::string> plain = without_underscores(text, 10);
  if (!plain || plain->find('(') != std::string::npos) return std::nullopt;
  const bool has_sign = plain->starts_with('+') || plain->starts_with('-');
  const char* begin = plain->data() + (has_sign ? 1 : 0);
  const char* end = plain->data() + plain->size();
  if (begin == end || *begin == '-' || *begin == '+') return std::nullopt;
  double value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (stop != end || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) value = std::strtod(begin, nullptr);  // infinite, or 0
  return plain->starts_with('-') ? -value : value;
}

std::int64_t truncated(Rendering& run, double number) {
  constexpr double beyond = 9223372036854775808.0;
  if (!(number >= -beyond && number < beyond)) {
    run.fail("a whole number needs more than 64 bits, expected a smaller one");
  }
  return static_cast<std::int64_t>(number);
}

Value rounded(Rendering& run, const Value& value, std::int64_t digits) {
  if (const auto whole = whole_of(value)) return rounded_whole(run, *whole, digits);
  return rounded_real(*number_of(value), digits);
}

}  // namespace ferry::engine::jinja
