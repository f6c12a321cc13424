/// @file
/// Regular expressions of tokenizers, by PCRE2.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex_dialect.hpp"

namespace ferry::engine {

/// A part of a text: bytes [begin, end), and whether the expression matched it or it lies between matches. A match of nothing
/// cuts what lies between others in two.
struct Stretch {
  std::size_t begin = 0, end = 0;
  bool matched = false;
};

/// A Unicode-aware expression as tokenizers write them. ^ and $ are of lines.
class Regex {
 public:
  /// Throws InputError, whose message `where` begins, for what cannot be compiled.
  Regex(const std::string& pattern, const std::string& where, Dialect dialect = Dialect::oniguruma);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// All of a text, which is valid UTF-8, as matches and what is between them, in order; nothing of it is empty. Throws
  /// InputError where matching takes more work than any tokenizer's does.
  [[nodiscard]] std::vector<Stretch> split(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

/// A pattern that matches this text and nothing else.
std::string literally(std::string_view text);

}  // namespace ferry::engine
