#include "jinja/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "jinja/errors.hpp"
#include "jinja/unicode.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

constexpr std::size_t npos = std::string_view::npos;

/// Turns all line breaks into newlines, and drops one at the end.
std::string normalized(const std::string& source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

std::string_view without_spaces_behind(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_space(next_character(text, at))) end = at;
  }
  return text.substr(0, end);
}

class Lexer {
 public:
  Lexer(const std::string& source, const std::string& name) : source_(normalized(source)), name_(name) {}

  std::vector<Token> tokens() {
    while (at_ < source_.size()) {
      const std::size_t tag = next_tag();
      if (tag == npos) {
        add_data(rest());
        at_ = source_.size();
      } else {
        read_tag(tag);
      }
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    count_lines();
    fail_at(name_, line_, what);
  }

  /// Brings `line_` up to date with `at_`.
  void count_lines() {
    const std::size_t upto = std::min(at_, source_.size());
    if (upto <= counted_) return;
    line_ += static_cast<std::uint32_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                                   source_.begin() + static_cast<std::ptrdiff_t>(upto), '\n'));
    counted_ = upto;
  }

  [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(at_); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  Token& add(TokenKind kind, std::string text) {
    count_lines();
    return tokens_.emplace_back(Token{kind, std::move(text), line_});
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::data, std::string(text));
  }

  [[nodiscard]] std::size_t next_tag() const {
    for (std::size_t at = source_.find('{', at_); at != npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != npos) return at;
    }
    return npos;
  }

  void skip_spaces() {
    while (at_ < source_.size()) {
      std::size_t next = at_;
      if (!is_space(next_character(source_, next))) return;
      at_ = next;
    }
  }

  /// The text before a tag that is kept: without spaces before a -, and without indentation if a tag begins its line.
  [[nodiscard]] std::string_view before_tag(std::string_view text, char control, bool is_print) const {
    if (control == '-') return without_spaces_behind(text);
    if (control == '+' || is_print) return text;
    const std::size_t newline = text.rfind('\n'), begin = newline == npos ? 0 : newline + 1;
    if (begin == 0 && !line_starts_) return text;
    return without_spaces_behind(text.substr(begin)).empty() ? text.substr(0, begin) : text;
  }

  /// Takes a + or - at the beginning of a tag.
  char control() {
    const char c = peek();
    if (c != '-' && c != '+') return '\0';
    ++at_;
    return c;
  }

  /// Takes the end of a tag, if it is here. A - also takes the spaces behind it; without a sign, `trims` takes a newline.
  bool take_end(std::string_view end, bool trims, bool plus) {
    const bool minus = peek() == '-', is_plus = plus && peek() == '+';
    const std::size_t sign = minus || is_plus ? 1 : 0;
    if (rest().substr(std::min(sign, rest().size()), 2) != end) return false;
    at_ += sign + 2;
    if (minus) {
      skip_spaces();
    } else if (trims && !is_plus && peek() == '\n') {
      ++at_;
    }
    line_starts_ = source_[at_ - 1] == '\n';
    return true;
  }

  void read_tag(std::size_t tag) {
    const std::string_view text = rest().substr(0, tag - at_);
    const std::size_t begin = at_;
    at_ = tag + 2;
    const char kind = source_[tag + 1], sign = control();
    const std::size_t inside = at_;
    const std::string_view kept = before_tag(text, sign, kind == '{');
    at_ = begin;
    add_data(kept);
    at_ = tag;
    if (kind == '#') {
      at_ = inside;
      skip_comment();
    } else if (kind == '%' && begins_raw(inside)) {
      read_raw();
    } else {
      add(kind == '{' ? TokenKind::print_begin : TokenKind::block_begin, "");
      at_ = inside;
      read_code(kind == '{');
    }
  }

  /// Like jinja2, accepts an unclosed comment if the template ends right after its beginning.
  void skip_comment() {
    const std::size_t begin = at_;
    while (at_ < source_.size()) {
      if (take_end("#}", true, true)) return;
      ++at_;
    }
    at_ = begin;
    if (!rest().empty()) fail("a comment does not end, expected #}");
  }

  /// Moves behind a {% raw %} if there is one.
  bool begins_raw(std::size_t inside) {
    const std::size_t back = std::exchange(at_, inside);
    if (take_word("raw") && take_end("%}", false, false)) return true;
    at_ = back;
    return false;
  }

  bool take_word(std::string_view word) {
    skip_spaces();
    if (!rest().starts_with(word)) return false;
    at_ += word.size();
    skip_spaces();
    return true;
  }

  void read_raw() {
    const std::size_t begin = at_;
    const bool line_started = line_starts_;
    for (std::size_t tag = source_.find("{%", at_); tag != npos; tag = source_.find("{%", tag + 1)) {
      at_ = tag + 2;
      const char sign = control();
      if (!take_word("endraw") || !take_end("%}", true, true)) continue;
      const std::size_t end = at_;
      const bool line_starts = std::exchange(line_starts_, line_started);
      at_ = begin;
      add_data(before_tag(rest().substr(0, tag - begin), sign, false));
      line_starts_ = line_starts;
      at_ = end;
      return;
    }
    at_ = begin;
    if (!rest().empty()) fail("{% raw %} does not end, expected {% endraw %}");
  }

  void read_code(bool print) {
    std::string open;  // the closing brackets that are still expected
    while (true) {
      const std::size_t begin = at_;
      if (open.empty() && (print ? take_end("}}", false, false) : take_end("%}", true, true))) {
        const std::size_t end = std::exchange(at_, begin);
        add(print ? TokenKind::print_end : TokenKind::block_end, "");
        at_ = end;
        return;
      }
      skip_spaces();
      if (at_ == source_.size()) return;
      if (at_ == begin) read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = peek();
    if (is_digit(c)) {
      read_number();
    } else if (is_letter(c)) {
      std::size_t length = 1;
      while (is_letter(peek(length)) || is_digit(peek(length))) ++length;
      add(TokenKind::name, source_.substr(at_, length));
      at_ += length;
    } else if (c == '\'' || c == '"') {
      read_text(c);
    } else {
      read_sign(open);
    }
  }

  void read_sign(std::string& open) {
    constexpr std::array<std::string_view, 6> pairs{"//", "**", "==", "!=", ">=", "<="};
    const std::string two(rest().substr(0, 2));
    const bool paired = std::find(pairs.begin(), pairs.end(), two) != pairs.end();
    const char c = peek();
    if (!paired && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == npos) {
      std::size_t end = at_;
      next_character(source_, end);
      const std::string shown = source_.substr(at_, end - at_);
      if (shown.size() > 1) fail(fmt::format("{} outside of a text is not supported", shown));
      fail(fmt::format("{}, expected a name, a number, a text or an operator", shown));
    }
    if (c == '{' || c == '(' || c == '[') open += c == '{' ? '}' : c == '(' ? ')' : ']';
    if (c == '}' || c == ')' || c == ']') {
      if (open.empty() || open.back() != c) {
        fail(fmt::format("{}, expected {}", c, open.empty() ? "a bracket before it" : open.substr(open.size() - 1)));
      }
      open.pop_back();
    }
    add(TokenKind::sign, paired ? two : std::string(1, c));
    at_ += paired ? 2 : 1;
  }

  /// The length of digits from `begin` on, with single underscores between them.
  template <class IsDigit>
  std::size_t digits(std::size_t begin, IsDigit is_one) const {
    std::size_t end = begin;
    while (is_one(peek(end)) || (end > begin && peek(end) == '_' && is_one(peek(end + 1)))) ++end;
    return end - begin;
  }

  [[nodiscard]] std::string plain(std::size_t begin, std::size_t end) const {
    std::string text(rest().substr(begin, end - begin));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    return text;
  }

  void read_number() {
    const std::size_t front = digits(0, is_digit);
    std::size_t end = front;
    const bool behind_point = at_ > 0 && source_[at_ - 1] == '.';
    if (!behind_point) {
      if (peek(end) == '.' && is_digit(peek(end + 1))) end += 1 + digits(end + 1, is_digit);
      const std::size_t sign = peek(end + 1) == '+' || peek(end + 1) == '-' ? 2 : 1;
      if ((peek(end) == 'e' || peek(end) == 'E') && is_digit(peek(end + sign))) {
        end += sign + digits(end + sign, is_digit);
      }
    }
    if (end == front) return read_whole();
    double value = 0;
    const std::string text = plain(0, end);
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
      fail(fmt::format("{}, expected a number that a float can hold", text));
    }
    add(TokenKind::real, text).real = value;
    at_ += end;
  }

  /// A number that begins with 0x, 0o, 0b or a digit from 1 to 9, or only zeros.
  void read_whole() {
    const char letter = static_cast<char>(peek(1) | 0x20);
    const int said = peek() != '0' ? 0 : letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    const int base = said == 0 ? 10 : said;
    const auto is_one = [&](char c) {
      const bool hex = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      return base == 16 && hex ? true : is_digit(c) && c - '0' < (said == 0 && peek() == '0' ? 1 : base);
    };
    std::size_t begin = said == 0 ? 0 : 2;
    if (said != 0 && peek(begin) == '_') ++begin;
    std::size_t length = digits(begin, is_one);
    if (length == 0) length = (begin = 0) + 1;  // 0x without digits: a 0 and a name
    const std::string text = plain(begin, begin + length);
    std::int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value, base).ec != std::errc()) {
      fail(fmt::format("{}, expected a whole number of 64 bits", text));
    }
    add(TokenKind::whole, text).whole = value;
    at_ += begin + length;
  }

  void read_text(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(fmt::format("a text does not end, expected {}", quote));
    const std::string inside = source_.substr(at_ + 1, end - at_ - 1);
    add(TokenKind::text, unescaped(inside));
    at_ = end + 1;
  }

  std::string unescaped(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] != '\\') {
        out += text[at++];
      } else {
        escape(out, text, at);
      }
    }
    return out;
  }

  void escape(std::string& out, std::string_view text, std::size_t& at) {
    constexpr std::string_view letters = "\\'\"abfnrtv", meanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = text[at + 1];
    at += 2;
    if (c == '\n') return;  // the line goes on
    if (const std::size_t known = letters.find(c); known != npos) {
      out += meanings[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_code(out, text.substr(std::min(at, text.size()), length), length, 16);
      at += length;
    } else if (c >= '0' && c <= '7') {
      std::size_t length = 1;
      while (length < 3 && at - 1 + length < text.size() && text[at - 1 + length] >= '0' &&
             text[at - 1 + length] <= '7')
        ++length;
      append_code(out, text.substr(at - 1, length), length, 8);
      at += length - 1;
    } else if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
      fail(fmt::format("\\{} in a text is not supported", c == 'N' ? "N" : "before a character beyond ASCII"));
    } else {
      out += {'\\', c};  // as it is
    }
  }

  void append_code(std::string& out, std::string_view digits, std::size_t length, int base) {
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    const bool whole = digits.size() == length && end == digits.data() + digits.size() && error == std::errc();
    if (!whole || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail(fmt::format("\\{} in a text, expected the code of a character", digits));
    }
    append_character(out, code);
  }

  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0, counted_ = 0;
  std::uint32_t line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

std::vector<Token> tokens_of(const std::string& source, const std::string& name) {
  return Lexer(source, name).tokens();
}

}  // namespace ferry::engine::jinja
