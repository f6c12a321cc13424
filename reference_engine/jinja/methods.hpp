/// @file
/// The methods of texts, lists, tuples and dicts.
#pragma once
#include <string_view>

#include "jinja/rendering.hpp"
#include "jinja/value.hpp"

namespace ferry::engine::jinja {

using Method = Value (*)(Rendering& run, const Value& self, const Arguments& given);

/// None if the value has no such method.
Method method_of(const Value& self, std::string_view name);
/// Python has the method, and templates here have not.
bool is_unsupported_method(const Value& self, std::string_view name);

}  // namespace ferry::engine::jinja
