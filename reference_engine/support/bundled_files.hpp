/// @file
/// Files that come with ferry.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace ferry::engine {

/// Where models, machines and shapes are: beside an installed `ferry`, or in the source tree.
std::filesystem::path data_directory();

/// Names of the JSON files in a folder of it, in order. Throws InputError if there are none.
std::vector<std::string> data_names(const std::string& folder);

/// One of them by name, or a file of the user's own by path (anything with a slash or ending in .json). `kind` names it
/// in the InputError for an unknown name, which suggests the nearest.
std::filesystem::path data_file(const std::string& folder, const std::string& kind, const std::string& name_or_path);

}  // namespace ferry::engine
