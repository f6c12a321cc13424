/// @file
/// Standard output.
#pragma once
#include <string_view>

namespace ferry::engine {

/// Prints to standard output. A reader that has had enough is no error. A full disk is, but `check_printed` says so, and not
/// this, so that what else is written, such as results in files, is not lost.
void print(std::string_view text);
/// Throws InputError if something could not be printed.
void check_printed();

/// From now on `print` goes to standard error: standard output is an output file's.
void print_to_standard_error();

}  // namespace ferry::engine
