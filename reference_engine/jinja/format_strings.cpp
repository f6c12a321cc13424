#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/operators.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

/// How to format one value. Both kinds of format strings are read into this.
struct Style {
  std::string fill = " ";
  char align = 0;  ///< 0: numbers to the right, others to the left; '=': filled after the sign
  char sign = '-';
  bool prefixed = false;
  bool zeros = false;  ///< numbers without `align` are filled after the sign
  std::int64_t width = 0;
  std::optional<std::int64_t> precision;
  char type = 0;
};

/// The digits of a size in a format string, from `at` on.
std::optional<std::int64_t> read_size(Rendering& run, std::string_view text, std::size_t& at) {
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), size);
  if (end == text.data() + at || text[at] == '-') return std::nullopt;
  if (error != std::errc() || size > static_cast<std::int64_t>(longest_text)) {
    run.fail("a size in a format string is too large, expected a smaller one");
  }
  at = static_cast<std::size_t>(end - text.data());
  return size;
}

std::string signed_number(const Style& style, bool negative, const std::string& prefix, const std::string& digits) {
  const std::string sign = negative ? "-" : style.sign == '-' ? "" : std::string(1, style.sign);
  std::string filled;
  const auto length = static_cast<std::int64_t>(sign.size() + prefix.size() + digits.size());
  if (style.align == '=') {
    for (std::int64_t i = length; i < style.width; ++i) filled += style.fill;
  }
  return sign + prefix + filled + digits;
}

std::string real_digits(Rendering& run, double number, const Style& style) {
  constexpr std::int64_t most_digits = 1000;
  const auto precision = style.precision.value_or(6);
  if (precision > most_digits) run.fail(fmt::format("more than {} digits of a number, expected fewer", most_digits));
  switch (style.type) {
    case 'f':
      return fmt::format("{:.{}f}", number, precision);
    case 'F':
      return fmt::format("{:.{}F}", number, precision);
    case 'e':
      return fmt::format("{:.{}e}", number, precision);
    case 'E':
      return fmt::format("{:.{}E}", number, precision);
    case 'g':
      return fmt::format("{:.{}g}", number, precision);
    case 'G':
      return fmt::format("{:.{}G}", number, precision);
    case '%':
      return fmt::format("{:.{}f}%", number * 100, precision);
    default:
      if (style.precision) run.fail("a precision without a type in a format string is not supported");
      return float_text(number);
  }
}

std::string format_real(Rendering& run, double number, const Style& style) {
  const bool negative = std::signbit(number) && !std::isnan(number);
  return signed_number(style, negative, "", real_digits(run, std::abs(number), style));
}

std::string format_whole(Rendering& run, std::int64_t number, const Style& style) {
  if (style.precision) run.fail("a precision of whole numbers in a format string is not supported");
  const std::uint64_t size = number < 0 ? -static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
  std::string digits, prefix = style.prefixed ? std::string{'0', style.type} : "";
  switch (style.type) {
    case 'x':
      digits = fmt::format("{:x}", size);
      break;
    case 'X':
      digits = fmt::format("{:X}", size);
      break;
    case 'o':
      digits = fmt::format("{:o}", size);
      break;
    case 'b':
      digits = fmt::format("{:b}", size);
      break;
    default:
      digits = fmt::format("{}", size);
      prefix.clear();
  }
  return signed_number(style, number < 0, prefix, digits);
}

std::string padded(Rendering& run, const std::string& text, const Style& style, char otherwise) {
  return aligned(run, text, style.width, style.fill, style.align == 0 ? otherwise : style.align);
}

std::string format_text(Rendering& run, const std::string& text, const Style& style) {
  std::string cut = text;
  if (style.precision) {
    const Value whole = run.text(text);
    cut = printed(run, slice_of(run, whole, {std::nullopt, style.precision, std::nullopt}));
  }
  return padded(run, cut, style, '<');
}

std::string format_number(Rendering& run, const Value& value, Style style) {
  if (style.zeros && style.align == 0) style.align = '=';
  const bool real = std::string_view("eEfFgG%").find(style.type) != std::string_view::npos && style.type != 0;
  const auto whole = whole_of(value);
  if (whole && !real) return padded(run, format_whole(run, *whole, style), style, '>');
  return padded(run, format_real(run, *number_of(value), style), style, '>');
}

/// text % value, read from left to right.
class PercentFormat {
 public:
  PercentFormat(Rendering& run, std::string_view format, const Value& value)
      : run_(run), format_(format), value_(value), out_(run) {}

  Value written() {
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      out_.add(format_.substr(at_, percent - at_));
      at_ = percent + 1;
      if (percent < format_.size()) conversion();
    }
    const bool mapping = dict_of(value_) != nullptr || std::holds_alternative<List>(value_) || is_undefined(value_);
    if (used_ < count() && !mapping) run_.fail("a format string has fewer conversions than values, expected as many");
    return run_.text(out_.take());
  }

 private:
  [[nodiscard]] std::size_t count() const {
    return std::holds_alternative<Tuple>(value_) ? list_of(value_)->items.size() : 1;
  }

  Value next_value() {
    if (used_ >= count()) run_.fail("a format string has more conversions than values, expected as many");
    const std::size_t index = used_++;
    return std::holds_alternative<Tuple>(value_) ? list_of(value_)->items[index] : value_;
  }

  Value named_value() {
    const std::size_t end = format_.find(')', at_);
    const DictData* dict = dict_of(value_);
    if (end == std::string_view::npos || dict == nullptr) {
      run_.fail("%(name) in a format string, expected a dict of values");
    }
    const std::string_view name = format_.substr(at_ + 1, end - at_ - 1);
    const Value* found = dict->find(name);
    if (found == nullptr) run_.fail(fmt::format("a format string asks for {}, expected a name in the dict", name));
    at_ = end + 1;
    return *found;
  }

  char peek() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  void conversion() {
    if (peek() == '%') {
      out_.add(1, format_[at_++]);
      return;
    }
    std::optional<Value> named;
    if (peek() == '(') named = named_value();
    Style style = read_style();
    const char type = peek();
    ++at_;
    style.type = type == 'i' || type == 'u' ? 'd' : type;
    if (type == '\0' || std::string_view("srdiuxXoeEfFgG").find(type) == std::string_view::npos) {
      run_.fail(type == '\0' ? std::string("a format string ends within a conversion, expected a type")
                             : fmt::format("%{} in a format string is not supported", type));
    }
    convert(named ? *named : next_value(), style);
  }

  Style read_style() {
    Style style;
    for (; std::string_view("-+ #0").find(peek()) != std::string_view::npos && peek() != '\0'; ++at_) {
      const char flag = peek();
      if (flag == '-') style.align = '<';
      if (flag == '+' || (flag == ' ' && style.sign != '+')) style.sign = flag;
      if (flag == '#') style.prefixed = true;
      if (flag == '0') style.zeros = true;
    }
    if (peek() == '*') run_.fail("* in a format string is not supported");
    style.width = read_size(run_, format_, at_).value_or(0);
    if (peek() == '.') {
      ++at_;
      style.precision = read_size(run_, format_, at_).value_or(0);
    }
    while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++at_;  // C's length modifiers, which Python ignores
    return style;
  }

  void convert(const Value& value, Style style) {
    if (style.type == 's' || style.type == 'r') {
      const std::string text = style.type == 's' ? printed(run_, value) : represented(run_, value);
      if (style.align == 0) style.align = '>';
      return out_.add(format_text(run_, text, style));
    }
    if (!number_of(value)) run_.fail(fmt::format("%{} of {}, expected a number", style.type, a_type_of(value)));
    if (style.zeros && style.align == 0) style.fill = "0";
    const bool whole = std::string_view("dxXo").find(style.type) != std::string_view::npos;
    if (!whole) return out_.add(format_number(run_, *number_of(value), style));
    out_.add(format_number(run_, whole_of(value) ? value : cut_off(value, style.type), style));
  }

  /// %d drops a float's fraction.
  Value cut_off(const Value& value, char type) {
    const double number = std::trunc(*number_of(value));
    if (type != 'd' || !(std::abs(number) < 9.2e18)) {
      run_.fail(fmt::format("%{} of {}, expected a whole number", type, number));
    }
    return static_cast<std::int64_t>(number);
  }

  Rendering& run_;
  std::string_view format_;
  const Value& value_;
  TextBuilder out_;
  std::size_t at_ = 0, used_ = 0;
};

/// text.format(...), read from left to right.
class BraceFormat {
 public:
  BraceFormat(Rendering& run, std::string_view format, const Arguments& arguments)
      : run_(run), format_(format), arguments_(arguments), out_(run) {}

  Value written() {
    while (at_ < format_.size()) {
      const std::size_t brace = std::min(format_.find_first_of("{}", at_), format_.size());
      out_.add(format_.substr(at_, brace - at_));
      at_ = brace + 1;
      if (brace == format_.size()) break;
      if (at_ < format_.size() && format_[at_] == format_[brace]) {
        out_.add(1, format_[at_++]);
      } else if (format_[brace] == '}') {
        run_.fail("a single } in a format string, expected }}");
      } else {
        field();
      }
    }
    return run_.text(out_.take());
  }

 private:
  void field() {
    const std::size_t end = format_.find_first_of("{}", at_);
    if (end == std::string_view::npos) run_.fail("a { in a format string is not closed, expected }");
    if (format_[end] == '{') run_.fail("a field within a field of a format string is not supported");
    std::string_view text = format_.substr(at_, end - at_);
    at_ = end + 1;
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::string_view style = colon < text.size() ? text.substr(colon + 1) : "";
    text = text.substr(0, colon);
    const std::size_t mark = std::min(text.find('!'), text.size());
    Value value = value_of(text.substr(0, mark));
    if (mark < text.size()) value = converted(value, text.substr(mark + 1));
    out_.add(style.empty() ? printed(run_, value) : styled(value, style));
  }

  Value converted(const Value& value, std::string_view conversion) {
    if (conversion == "s") return run_.text(printed(run_, value));
    if (conversion == "r") return run_.text(represented(run_, value));
    run_.fail(fmt::format("!{} in a format string is not supported", conversion));
  }

  Value value_of(std::string_view name) {
    const std::size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first_of(name.substr(0, end));
    for (std::size_t at = end; at < name.size();) {
      const bool is_item = name[at] == '[';
      const std::size_t begin = at + 1;
      at = std::min(is_item ? name.find(']', begin) : name.find_first_of(".[", begin), name.size());
      if (is_item && at == name.size()) run_.fail("a [ in a format string is not closed, expected ]");
      const std::string_view key = name.substr(begin, at - begin);
      if (is_item) ++at;
      const std::optional<std::int64_t> index = is_item ? number(key) : std::nullopt;
      const Value text = run_.text(std::string(key));
      value = index     ? item_of(run_, value, *index)
              : is_item ? item_of(run_, value, text)
                        : attribute_of(run_, value, text);
    }
    return value;
  }

  static std::optional<std::int64_t> number(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
    return value;
  }

  Value first_of(std::string_view name) {
    const std::optional<std::int64_t> index = name.empty() ? std::optional(next_++) : number(name);
    if (index) {
      (name.empty() ? automatic_ : manual_) = true;
      if (automatic_ && manual_) run_.fail("a format string counts fields and numbers them, expected one of both");
      if (*index >= static_cast<std::int64_t>(arguments_.positional.size())) {
        run_.fail("a format string has more fields than there are values, expected as many");
      }
      return arguments_.positional[static_cast<std::size_t>(*index)];
    }
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    run_.fail(fmt::format("a format string asks for {}, expected a value of that name", name));
  }

  /// [[fill]align][sign][#][0][width][.precision][type]
  Style read_style(std::string_view text) {
    Style style;
    std::size_t at = 0, behind_fill = 0;
    const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
    const auto is_align = [&](std::size_t i) {
      return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
    };
    next_character(text, behind_fill);
    const bool filled = is_align(behind_fill);
    if (filled) {
      style.fill = std::string(text.substr(0, behind_fill));
      style.align = text[behind_fill];
      at = behind_fill + 1;
    } else if (is_align(0)) {
      style.align = text[at++];
    }
    if (peek() == '+' || peek() == '-' || peek() == ' ') style.sign = text[at++];
    if (peek() == '#') style.prefixed = ++at > 0;
    if (peek() == '0') {
      style.zeros = ++at > 0;
      if (!filled) style.fill = "0";
    }
    style.width = read_size(run_, text, at).value_or(0);
    if (peek() == '.') {
      ++at;
      style.precision = read_size(run_, text, at);
      if (!style.precision) run_.fail("a format string has a . without a precision, expected a number");
    }
    if (at < text.size()) style.type = text[at++];
    if (at < text.size() || style.type == ',' || style.type == '_') {
      run_.fail(fmt::format("{} in a format string is not supported", text));
    }
    return style;
  }

  std::string styled(const Value& value, std::string_view text) {
    const Style style = read_style(text);
    if (const TextData* data = text_of(value)) {
      if ((style.type != 0 && style.type != 's') || style.align == '=' || style.sign != '-') {
        run_.fail(fmt::format("{{:{}}} of a text, expected the style of a text", text));
      }
      return format_text(run_, data->text, style);
    }
    if (!number_of(value)) run_.fail(fmt::format("{{:{}}} of {}, expected none", text, a_type_of(value)));
    const bool whole = whole_of(value).has_value();
    const std::string_view known = whole ? "dxXobeEfFgG%" : "eEfFgG%";
    if (style.type != 0 && known.find(style.type) == std::string_view::npos) {
      run_.fail(fmt::format("{{:{}}} of {} is not supported", text, a_type_of(value)));
    }
    return format_number(run_, value, style);
  }

  Rendering& run_;
  std::string_view format_;
  const Arguments& arguments_;
  TextBuilder out_;
  std::size_t at_ = 0;
  std::int64_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

}  // namespace

Value format_percent(Rendering& run, const TextData& format, const Value& value) {
  if (format.safe) run.fail("% of a text that was marked safe is not supported");
  return PercentFormat(run, format.text, value).written();
}

Value format_braces(Rendering& run, const TextData& format, const Arguments& arguments) {
  if (format.safe) run.fail("format of a text that was marked safe is not supported");
  return BraceFormat(run, format.text, arguments).written();
}

}  // namespace ferry::engine::jinja
