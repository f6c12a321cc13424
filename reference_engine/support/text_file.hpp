/// @file
/// Texts that a user names.
#pragma once
#include <string>

namespace ferry::engine {

/// A text file; `option` names it in the InputError.
std::string read_text(const std::string& option, const std::string& path);

}  // namespace ferry::engine
