/// @file
/// The methods of texts, and what filters share with them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "jinja/methods.hpp"

namespace ferry::engine::jinja {

/// None if texts have no such method.
Method text_method(std::string_view name);

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
