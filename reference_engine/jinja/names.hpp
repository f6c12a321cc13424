/// @file
/// Walks over the names in a tree.
#pragma once
#include <functional>
#include <string_view>

#include "jinja/tree.hpp"

namespace ferry::engine::jinja {

/// Calls `visit` with each expression directly below.
void for_each_below(Expression& expression, const std::function<void(Expression&)>& visit);
void for_each_below(const Expression& expression, const std::function<void(const Expression&)>& visit);

/// True if jinja2 sees the name read before it is set, in the order in which its own tree has the nodes: so it decides
/// whether a loop has a `loop` and a macro a `caller`.
bool reads_first(const Statements& body, std::string_view name);

}  // namespace ferry::engine::jinja
