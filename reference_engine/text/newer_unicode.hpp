/// @file
/// Characters that Unicode added after version 14, which is the last that Debian 12's PCRE2 knows.
#pragma once
#include <string>
#include <string_view>

namespace ferry::engine {

/// The text with every character of Unicode 15, 15.1 and 16 replaced by an older one of the same general category and as
/// many bytes (a Chinese one by a Chinese one), so that an expression's \p{...} finds at each byte what a library finds that
/// knows them; empty if there is none. `text` is valid UTF-8.
std::string with_older_characters(std::string_view text);

}  // namespace ferry::engine
