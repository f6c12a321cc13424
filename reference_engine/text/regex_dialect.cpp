#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_dialect.hpp"

#include <fmt/format.h>
#include <pcre2.h>

#include <vector>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// Unicode's White_Space, as the inside of a class.
constexpr const char* white_space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
/// \w, likewise. Oniguruma: alphabetic characters, marks, numbers and connectors; within a class only letters and decimal
/// digits instead of alphabetic characters and numbers. Rust: alphabetic characters, marks, digits, connectors and joiners.
constexpr const char* word = R"(\p{Alphabetic}\p{M}\p{N}\p{Pc})";
constexpr const char* word_in_class = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
constexpr const char* rust_word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";
constexpr std::size_t deepest = 16;  // classes within classes

bool can_be_read(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where, Dialect dialect)
      : pattern_(pattern), where_(where), dialect_(dialect) {}

  std::string whole() {
    std::vector<std::size_t> groups;
    std::size_t last = 0;  // where the last item that a quantifier may follow begins
    while (at_ < pattern_.size()) {
      const std::size_t begin = out_.size();
      const char c = pattern_[at_];
      if (c == '\\') {
        last = begin;
        out_ += escape(false);
      } else if (c == '[') {
        last = begin;
        out_ += alone(read_class(0));
      } else if (c == '(') {
        groups.push_back(begin);
        out_ += group();
      } else if (c == ')') {
        if (!groups.empty()) {
          last = groups.back();
          groups.pop_back();
        }
        out_ += pattern_[at_++];
      } else if (const std::string interval = dialect_ == Dialect::oniguruma ? read_interval() : "";
                 !interval.empty()) {
        out_ += interval;
        const char next = at_ < pattern_.size() ? pattern_[at_] : '\0';
        const bool exact = interval.find(',') == std::string::npos;
        if (next == '+' || (next == '?' && exact)) {
          out_.insert(last, "(?:");
          out_ += ')';
        }
      } else {
        if (std::string_view("*+?|^$").find(c) == std::string_view::npos &&
            (static_cast<unsigned char>(c) & 0xc0U) != 0x80U)
          last = begin;
        out_ += pattern_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  struct Set {
    std::string body;  ///< the inside of a class
    bool negated = false;
    std::string condition;  ///< look-aheads for the classes that it is intersected with
  };

  [[noreturn]] void refuse(const char* what) const {
    throw InputError(
        fmt::format("{}: the expression \"{:.100}\" has {}, which is not supported", where_, pattern_, what));
  }
  [[nodiscard]] bool is_next(std::string_view text) const { return pattern_.compare(at_, text.size(), text) == 0; }

  static std::string alone(const Set& set) {
    const std::string own = fmt::format("[{}{}]", set.negated ? "^" : "", set.body);
    return set.condition.empty() ? own : fmt::format("(?:{}{})", set.condition, own);
  }

  [[nodiscard]] const char* word_set(bool in_class) const {
    return dialect_ == Dialect::rust ? rust_word : in_class ? word_in_class : word;
  }

  /// Translates what begins with a backslash.
  std::string escape(bool in_class) {
    if (at_ + 1 >= pattern_.size()) return std::string(1, pattern_[at_++]);
    const char next = pattern_[at_ + 1];
    if (next == 'h' || next == 'H') refuse("\\h, a hexadecimal digit to some and a blank to others");
    const bool small = next == 's' || next == 'w';
    if (small || next == 'S' || next == 'W') {
      at_ += 2;
      if (!small && in_class) return {'\\', next};  // PCRE2's own: a complement cannot be listed in a class
      const char* set = next == 's' || next == 'S' ? white_space : word_set(in_class);
      return in_class ? set : fmt::format("[{}{}]", small ? "" : "^", set);
    }
    std::string all{'\\', next};
    at_ += 2;
    if (!in_class && (next == 'b' || next == 'B')) {  // where words begin and end, of what \w has
      const char* expression =
          next == 'b' ? "(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))" : "(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))";
      return fmt::format(fmt::runtime(expression), word_set(false));
    }
    if (std::string_view("pPxo").find(next) == std::string_view::npos || at_ >= pattern_.size() || pattern_[at_] != '{')
      return all;
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string::npos) return all;
    std::string inside = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    if ((next == 'p' || next == 'P') && inside.size() > 2) {
      const std::size_t first = inside[0] == '^' ? 1 : 0;
      const std::string script = std::string(inside).insert(first, "sc:");
      if (can_be_read("\\p{" + script + "}")) inside = script;
    }
    return all + "{" + inside + "}";
  }

  /// Reads a class from its opening bracket to its closing one.
  Set read_class(std::size_t depth) {
    if (depth == deepest) refuse("classes within classes");
    ++at_;
    Set all;
    if (is_next("^")) all.negated = true, ++at_;
    std::vector<Set> parts(1);
    bool nested = false;  // the part is a class within the class, and nothing else
    if (is_next("]")) parts[0].body = "\\]", ++at_;
    for (;;) {
      if (at_ >= pattern_.size()) refuse("a class without its ]");
      Set& part = parts.back();
      if (is_next("]")) break;
      if (is_next("&&")) {
        at_ += 2;
        parts.emplace_back();
        nested = false;
        continue;
      }
      if (nested) refuse("&& beside more of a class");
      if (pattern_[at_] == '\\') {
        part.body += escape(true);
      } else if (is_next("[:")) {
        const std::size_t end = pattern_.find(":]", at_);
        if (end == std::string::npos) refuse("a class of [: without its :]");
        part.body += pattern_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (is_next("[")) {
        const Set inner = read_class(depth + 1);
        if (!inner.condition.empty()) refuse("&& in a class within a class");
        if (inner.negated) {
          if (!part.body.empty()) refuse("a negated class in a class");
          part = inner;
          nested = true;
        } else {
          part.body += inner.body;
        }
      } else {
        part.body += pattern_[at_++];
      }
    }
    ++at_;
    if (parts.size() > 1 && all.negated) refuse("&& in a negated class");
    if (parts[0].negated && all.negated) return {parts[0].body, false, ""};
    for (std::size_t i = 1; i < parts.size(); ++i) {
      all.condition += fmt::format("(?{}[{}])", parts[i].negated ? '!' : '=', parts[i].body);
    }
    all.body = parts[0].body;
    all.negated = all.negated || parts[0].negated;
    return all;
  }

  /// Translates an opening parenthesis and the flags behind it.
  std::string group() {
    std::size_t end = at_ + 1;
    if (is_next("(?")) {
      end = at_ + 2;
      while (end < pattern_.size() && ((pattern_[end] >= 'a' && pattern_[end] <= 'z') || pattern_[end] == '-')) ++end;
      if (end >= pattern_.size() || (pattern_[end] != ':' && pattern_[end] != ')')) end = at_ + 1;  // no flags
    }
    std::string own = pattern_.substr(at_, end - at_);
    for (char& c : own) c = c == 'm' && dialect_ == Dialect::oniguruma ? 's' : c;
    at_ = end;
    return own;
  }

  /// Reads {2}, {2,}, {2,3} or {,3}. Empty if there is none.
  std::string read_interval() {
    if (pattern_[at_] != '{') return "";
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    const bool least = end > at_ + 1;
    bool most = false;
    if (end < pattern_.size() && pattern_[end] == ',') {
      ++end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end, most = true;
    }
    if (end >= pattern_.size() || pattern_[end] != '}' || (!least && !most)) return "";
    std::string own = pattern_.substr(at_, end + 1 - at_);
    if (!least) own.insert(1, "0");
    at_ = end + 1;
    return own;
  }

  const std::string& pattern_;
  const std::string& where_;
  Dialect dialect_;
  std::string out_;
  std::size_t at_ = 0;
};

}  // namespace

std::string for_pcre2(const std::string& pattern, const std::string& where, Dialect dialect) {
  return Translator(pattern, where, dialect).whole();
}

}  // namespace ferry::engine
