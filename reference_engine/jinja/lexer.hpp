/// @file
/// A template's text, cut into what is printed as it is and the tokens of its tags.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ferry::engine::jinja {

enum class TokenKind { data, print_begin, print_end, block_begin, block_end, name, text, whole, real, sign, end };

struct Token {
  TokenKind kind;
  std::string text;  ///< of a text, what it says; of a sign, the sign
  std::uint32_t line;
  std::int64_t whole = 0;
  double real = 0;
};

/// Whitespace around tags goes as jinja2 has it with trim_blocks and lstrip_blocks. The last token is `end`. Throws
/// InputError, which begins with `name`.
std::vector<Token> tokens_of(const std::string& source, const std::string& name);

}  // namespace ferry::engine::jinja
