/// @file
/// How wide what people read may be.
#pragma once
#include <cstddef>
#include <string>

namespace ferry::engine {

/// Columns of the terminal on standard output; 80 where there is none. At least 40.
std::size_t terminal_columns();

/// Lines that are longer are broken at spaces. What follows begins below the text behind the line's first gap of two
/// spaces or more, as in a list of options, or else below the line's first letter. Words longer than that stay whole.
std::string wrapped(const std::string& text, std::size_t columns);

}  // namespace ferry::engine
