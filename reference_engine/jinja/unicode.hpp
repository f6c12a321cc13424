/// @file
/// Characters as Python's str sees them: what is a space, a letter or printable, and the other case of a text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ferry::engine::jinja {

/// What strip(), split() and the whitespace control of tags take for whitespace.
bool is_space(std::uint32_t character);
/// What repr() shows as it is.
bool is_printable(std::uint32_t character);
bool is_alpha(std::uint32_t character);
bool is_decimal(std::uint32_t character);
/// A letter or a number, of whatever kind.
bool is_alnum(std::uint32_t character);
bool is_lower(std::uint32_t character);
bool is_upper(std::uint32_t character);
/// Has a case: what begins a word for title().
bool is_cased(std::uint32_t character);

// These take valid UTF-8.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// The first character of each run of cased ones becomes large, all others small.
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);

/// The byte at which the character number `index` begins, or the end.
std::size_t byte_of(std::string_view text, std::size_t index);

}  // namespace ferry::engine::jinja
