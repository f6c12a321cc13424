/// @file
/// The methods of texts.
#pragma once
#include "text/jinja_methods.hpp"

namespace ferry::engine::jinja {

/// None if texts have no such method.
Method text_method(std::string_view name);

}  // namespace ferry::engine::jinja
