#include "support/errors.hpp"

#include <cstdint>

#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

/// Control characters (C0 and C1), line separators, and Unicode's Bidi_Control characters, which can make one name look like
/// another.
bool commands_terminal(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0x61c || c == 0x200e ||
         c == 0x200f || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string printable(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::uint32_t c = next_character(text, at);
    const bool broken = c == replacement_character && text.compare(begin, at - begin, "\xef\xbf\xbd") != 0;
    if (broken || commands_terminal(c)) {
      out += '?';
    } else {
      out.append(text, begin, at - begin);
    }
  }
  return out;
}

}  // namespace ferry::engine
