/// @file
/// Texts as code points and back, whatever bytes they are.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace ferry::engine {

/// In the place of what is no character.
inline constexpr std::uint32_t replacement_character = 0xfffd;

/// The character at byte `at`, which moves behind it. Of bytes that are none, as many as could begin one (the Unicode
/// standard's maximal subpart) make one replacement_character.
std::uint32_t next_character(std::string_view text, std::size_t& at);

void append_character(std::string& text, std::uint32_t character);

/// The text with replacement characters in the place of what is no UTF-8.
std::string valid_utf8(std::string_view text);

/// Bytes at the end of a text that begin a character and do not finish it.
std::size_t unfinished_bytes(std::string_view text);

/// How many characters a whole text has.
std::size_t count_characters(std::string_view text);

/// Gives out bytes that come piece by piece, a token's at a time, so that no character is ever cut.
class CharacterStream {
 public:
  /// What can be shown now.
  std::string push(std::string_view bytes);
  /// What is left at the end: of an unfinished character one replacement.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace ferry::engine
