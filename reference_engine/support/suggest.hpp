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
/// Throws InputError if a file of that name is here, for where a name without a slash or an ending is no file's.
void refuse_file_as_name(const std::string& kind, const std::string& name);

}  // namespace ferry::engine
