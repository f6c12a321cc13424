/// @file
/// "unknown stack \"lur\": did you mean \"lru\"?"
#pragma once
#include <string>
#include <vector>

namespace ferry::engine {

/// A sentence that refuses `name` and suggests the nearest of `known`: if that differs in at most two letters, or in at
/// most half of them, or contains the name.
std::string nearest_name(const std::string& kind, const std::string& name, const std::vector<std::string>& known);
/// The same, and all of them in brackets.
std::string unknown_name(const std::string& kind, const std::string& name, const std::vector<std::string>& known);

}  // namespace ferry::engine
