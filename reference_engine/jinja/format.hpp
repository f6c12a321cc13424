/// @file
/// Values as text: str() and repr() as Python has them, JSON, and the two kinds of format strings.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

/// str(value); of what is undefined, nothing.
std::string printed(Rendering& run, const Value& value);
/// repr(value).
std::string represented(Rendering& run, const Value& value);
std::string shown_dict(Rendering& run, const DictData& dict);
/// The fewest digits that give this number back, with a point or an exponent.
std::string float_text(double number);

/// What json.dumps takes.
struct JsonStyle {
  bool ascii = false, sorted = false;
  std::optional<std::string> indent;  ///< of one level; none: all in one line
  std::string between = ", ", behind_key = ": ";
};
std::string to_json(Rendering& run, const Value& value, const JsonStyle& style);

/// `text % value`.
Value format_percent(Rendering& run, const TextData& format, const Value& value);
/// text.format(...).
Value format_braces(Rendering& run, const TextData& format, const Arguments& arguments);

/// Fills a text up to a width; `align` is <, > or ^.
std::string aligned(Rendering& run, std::string_view text, std::int64_t width, std::string_view fill, char align);

}  // namespace ferry::engine::jinja
