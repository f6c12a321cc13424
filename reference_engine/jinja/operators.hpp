/// @file
/// Python's operators on a template's values. What Python has no answer for fails.
#pragma once
#include <string_view>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

enum class Arithmetic { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class Comparator { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };

bool truth(Rendering& run, const Value& value);
bool equals(Rendering& run, const Value& left, const Value& right);
bool compare(Rendering& run, Comparator comparator, const Value& left, const Value& right);
/// `value in container`.
bool contains(Rendering& run, const Value& container, const Value& value);
Value calculate(Rendering& run, Arithmetic operation, const Value& left, const Value& right);
Value negated(Rendering& run, const Value& value);
/// What a unary plus gives: numbers only.
Value affirmed(Rendering& run, const Value& value);

/// The characters that markup gives a meaning, as entities.
std::string escaped(Rendering& run, std::string_view text);
/// The byte at which `part` begins, from `from` on, or npos; takes time in proportion to the texts.
std::size_t find_text(Rendering& run, std::string_view text, std::string_view part, std::size_t from = 0);
/// The same for the last occurrence that ends by `to`.
std::size_t find_last_text(Rendering& run, std::string_view text, std::string_view part, std::size_t to);

}  // namespace ferry::engine::jinja
