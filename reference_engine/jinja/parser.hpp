/// @file
/// From tokens to a tree.
#pragma once
#include <string>
#include <vector>

#include "jinja/lexer.hpp"
#include "jinja/tree.hpp"

namespace ferry::engine::jinja {

inline constexpr std::uint32_t deepest_tree = 200;

/// Throws InputError, which begins with `name` and the line, for what is no template and for what is not supported.
/// Places of variables are left open.
Tree parse(std::vector<Token> tokens, const std::string& name);

}  // namespace ferry::engine::jinja
