/// @file
/// The methods of texts, lists, tuples and dicts.
#pragma once
#include <string_view>

#include "text/jinja_rendering.hpp"
#include "text/jinja_value.hpp"

namespace ferry::engine::jinja {

using Method = Value (*)(Rendering& run, const Value& self, const Arguments& given);

/// None if the value has no such method.
Method method_of(const Value& self, std::string_view name);
/// Python has the method, and templates here have not.
bool is_unsupported_method(const Value& self, std::string_view name);

// What filters share with methods of texts.
enum class Side { left, right, both };
/// Without what stands at the ends: whitespace, or any of `characters`.
std::string_view stripped(Rendering& run, std::string_view text, const TextData* characters, Side side);
/// Replaces the first `count` occurrences; all, if that is negative.
std::string replaced(Rendering& run, std::string_view text, std::string_view old, std::string_view by,
                     std::int64_t count);
/// As splitlines() has it: many more characters end a line than the newline.
std::vector<std::string_view> lines_of(std::string_view text, bool with_ends);
std::string centered(Rendering& run, std::string_view text, std::int64_t width, std::string_view fill);

}  // namespace ferry::engine::jinja
