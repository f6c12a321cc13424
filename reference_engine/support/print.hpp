/// @file
/// Standard output.
#pragma once
#include <string_view>

namespace ferry::engine {

/// To standard output. A reader that has had enough is no error; a full disk is, which `check_printed` says: what else is
/// written, results in files, is not lost for it.
void print(std::string_view text);
/// Throws InputError if something could not be printed.
void check_printed();

/// From now on `print` goes to standard error: standard output is an output file's.
void print_to_standard_error();

}  // namespace ferry::engine
