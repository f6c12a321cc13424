/// @file
/// Standard output.
#pragma once
#include <string_view>

namespace ferry::engine {

/// To standard output. A reader that has had enough is no error; a full disk is. Throws InputError.
void print(std::string_view text);

/// From now on `print` goes to standard error: standard output is an output file's.
void print_to_standard_error();

}  // namespace ferry::engine
