/// @file
/// jinja2's filters and tests, and the tojson that transformers has in the place of jinja2's.
#pragma once
#include <string_view>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

using Filter = Value (*)(Rendering& run, const Value& value, const Arguments& given);
using Test = bool (*)(Rendering& run, const Value& value, const Arguments& given);

/// None if there is no such filter here.
Filter find_filter(std::string_view name);
/// jinja2 has it, and templates here have not.
bool is_unsupported_filter(std::string_view name);
Test find_test(std::string_view name);

/// A filter or test whose name was computed, as those of map and select.
Value apply_filter(Rendering& run, std::string_view name, const Value& value, const Arguments& given);
bool apply_test(Rendering& run, std::string_view name, const Value& value, const Arguments& given);

/// Filters of sequences, for find_filter.
Filter find_sequence_filter(std::string_view name);

}  // namespace ferry::engine::jinja
