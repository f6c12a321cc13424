/// @file
/// Texts that a user names.
#pragma once
#include <atomic>
#include <string>

namespace ferry::engine {

/// A text file; `option` names it in the InputError.
std::string read_text(const std::string& option, const std::string& path);

/// Whether standard input is a pipe or a file: no terminal, and not /dev/null.
bool standard_input_has_text();
/// All of it, or what came before `stop` was set. `option` names it in the InputError.
std::string read_standard_input(const std::string& option, const std::atomic<bool>& stop);

}  // namespace ferry::engine
