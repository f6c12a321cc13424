#include "jinja/text_methods.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/operators.hpp"
#include "jinja/unicode.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

const TextData& data_of(const Value& self) {
  return *text_of(self);
}

/// A text made from `self`, which stays marked safe if `self` is.
Value like(Rendering& run, const Value& self, std::string_view text) {
  return run.text(std::string(text), data_of(self).safe);
}

void no_arguments(Rendering& run, std::string_view name, const Arguments& given) {
  static_cast<void>(Parameters(run, std::string(name), given, {}, 0));
}

/// An optional text argument, as the separator or the characters to strip; null if it is absent or None.
const TextData* optional_text(const Parameters& got, std::size_t index) {
  return got.has(index) && !is_none(got.at(index)) ? &got.text(index) : nullptr;
}

std::optional<std::int64_t> optional_whole(const Parameters& got, std::size_t index) {
  return got.has(index) && !is_none(got.at(index)) ? std::optional(got.whole(index)) : std::nullopt;
}

std::uint32_t character_before(std::string_view text, std::size_t& end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U);
  std::size_t at = end;
  return next_character(text, at);
}

template <std::string (*change)(std::string_view)>
Value changed_case(Rendering& run, const Value& self, const Arguments& given) {
  no_arguments(run, "a change of case", given);
  run.work_on_text(16 * data_of(self).text.size());
  return like(run, self, change(data_of(self).text));
}

Value casefold_method(Rendering& run, const Value& self, const Arguments& given) {
  if (!data_of(self).ascii()) run.fail("casefold of letters beyond ASCII is not supported");
  return changed_case<lower>(run, self, given);
}

template <Side side>
Value strip_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "strip", given, {"chars"}, 0);
  return like(run, self, stripped(run, data_of(self).text, optional_text(got, 0), side));
}

Value replace_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "replace", given, {"old", "new", "count"}, 2);
  const TextData &text = data_of(self), &by = got.text(1);
  return like(run, self,
              replaced(run, text.text, got.text(0).text, text.safe && !by.safe ? escaped(run, by.text) : by.text,
                       got.whole_or(2, -1)));
}

/// Collects pieces of a text, and checks that there is memory for their list.
class Pieces {
 public:
  Pieces(Rendering& run, const Value& self) : run_(run), self_(self) {}
  void add(std::string_view piece) {
    run_.work();
    all_.push_back(like(run_, self_, piece));
  }
  Value list(bool backward = false) {
    if (backward) std::reverse(all_.begin(), all_.end());
    return run_.list(std::move(all_));
  }
  [[nodiscard]] std::size_t size() const { return all_.size(); }

 private:
  Rendering& run_;
  const Value& self_;
  Values all_;
};

/// Splits at any amount of white space.
Value split_words(Rendering& run, const Value& self, std::int64_t most) {
  std::string_view rest = stripped(run, data_of(self).text, nullptr, Side::left);
  Pieces words(run, self);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(words.size()) == most) {
      words.add(rest);
      break;
    }
    std::size_t end = 0, next = 0;
    while (next < rest.size() && !is_space(next_character(rest, next))) end = next;
    words.add(rest.substr(0, end));
    rest = stripped(run, rest.substr(end), nullptr, Side::left);
  }
  return words.list();
}

Value split_words_from_right(Rendering& run, const Value& self, std::int64_t most) {
  std::string_view rest = stripped(run, data_of(self).text, nullptr, Side::right);
  Pieces words(run, self);
  while (!rest.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(words.size()) == most) {
      words.add(rest);
      break;
    }
    std::size_t begin = rest.size(), at = rest.size();
    while (at > 0 && !is_space(character_before(rest, at))) begin = at;
    words.add(rest.substr(begin));
    rest = stripped(run, rest.substr(0, begin), nullptr, Side::right);
  }
  return words.list(true);
}

Value split_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "split", given, {"sep", "maxsplit"}, 0);
  const TextData* separator = optional_text(got, 0);
  const std::int64_t most = got.whole_or(1, -1);
  if (separator == nullptr) return split_words(run, self, most);
  if (separator->text.empty()) run.fail("split at an empty text, expected a separator");
  const std::string_view text = data_of(self).text;
  Pieces pieces(run, self);
  std::size_t begin = 0;
  while (most < 0 || static_cast<std::int64_t>(pieces.size()) < most) {
    const std::size_t end = find_text(run, text, separator->text, begin);
    if (end == std::string_view::npos) break;
    pieces.add(text.substr(begin, end - begin));
    begin = end + separator->text.size();
  }
  pieces.add(text.substr(begin));
  return pieces.list();
}

/// Reverses the text once and searches that, so that many pieces take no more work than one.
Value rsplit_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "rsplit", given, {"sep", "maxsplit"}, 0);
  const TextData* separator = optional_text(got, 0);
  const std::int64_t most = got.whole_or(1, -1);
  if (separator == nullptr) return split_words_from_right(run, self, most);
  if (separator->text.empty()) run.fail("rsplit at an empty text, expected a separator");
  const std::string_view text = data_of(self).text;
  run.work_on_text(2 * text.size());
  const std::string backward(text.rbegin(), text.rend()), part(separator->text.rbegin(), separator->text.rend());
  Pieces pieces(run, self);
  std::size_t end = text.size();
  while (most < 0 || static_cast<std::int64_t>(pieces.size()) < most) {
    const std::size_t found = find_text(run, backward, part, text.size() - end);
    if (found == std::string_view::npos) break;
    const std::size_t begin = text.size() - found;
    pieces.add(text.substr(begin, end - begin));
    end = begin - part.size();
  }
  pieces.add(text.substr(0, end));
  return pieces.list(true);
}

Value splitlines_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "splitlines", given, {"keepends"}, 0);
  Pieces pieces(run, self);
  for (const std::string_view line : lines_of(data_of(self).text, got.flag_or(0, false))) pieces.add(line);
  return pieces.list();
}

template <bool from_right>
Value partition_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "partition", given, {"sep"}, 1);
  const std::string_view text = data_of(self).text, separator = got.text(0).text;
  if (separator.empty()) run.fail("partition at an empty text, expected a separator");
  const std::size_t at =
      from_right ? find_last_text(run, text, separator, text.size()) : find_text(run, text, separator);
  const Value whole = like(run, self, text), empty = like(run, self, "");
  if (at == std::string_view::npos)
    return from_right ? run.tuple({empty, empty, whole}) : run.tuple({whole, empty, empty});
  return run.tuple({like(run, self, text.substr(0, at)), like(run, self, separator),
                    like(run, self, text.substr(at + separator.size()))});
}

/// The part of a text between start and end, counted in characters; none if the end is before the start.
struct Window {
  std::string_view text;
  std::int64_t start = 0;
  bool exists = true;
};

Window window_of(const TextData& text, const Parameters& got, std::size_t first) {
  const auto size = static_cast<std::int64_t>(text.length);
  const auto bound = [&](std::int64_t at) { return at < 0 ? std::max<std::int64_t>(at + size, 0) : at; };
  const std::int64_t start = bound(optional_whole(got, first).value_or(0));
  const std::int64_t end = std::min(bound(optional_whole(got, first + 1).value_or(size)), size);
  if (start > end) return {"", start, false};
  const std::string_view whole = text.text;
  const std::size_t begin =
      text.ascii() ? static_cast<std::size_t>(start) : byte_of(whole, static_cast<std::size_t>(start));
  const auto count = static_cast<std::size_t>(end - start);
  const std::string_view rest = whole.substr(begin);
  return {rest.substr(0, text.ascii() ? count : byte_of(rest, count)), start, true};
}

template <bool last, bool must_exist>
Value find_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, must_exist ? "index" : "find", given, {"sub", "start", "end"}, 1);
  run.work_on_text(data_of(self).text.size());
  const Window window = window_of(data_of(self), got, 1);
  const std::string_view part = got.text(0).text;
  const std::size_t at = !window.exists ? std::string_view::npos
                         : last         ? find_last_text(run, window.text, part, window.text.size())
                                        : find_text(run, window.text, part);
  if (at != std::string_view::npos)
    return window.start + static_cast<std::int64_t>(count_characters(window.text.substr(0, at)));
  if (must_exist) run.fail("index: the text does not have such a part, expected one that it has");
  return std::int64_t{-1};
}

Value count_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "count", given, {"sub", "start", "end"}, 1);
  run.work_on_text(data_of(self).text.size());
  const Window window = window_of(data_of(self), got, 1);
  const std::string_view part = got.text(0).text;
  if (!window.exists) return std::int64_t{0};
  if (part.empty()) return static_cast<std::int64_t>(count_characters(window.text)) + 1;
  std::int64_t times = 0;
  for (std::size_t at = find_text(run, window.text, part); at != std::string_view::npos; ++times) {
    run.work();
    at = find_text(run, window.text, part, at + part.size());
  }
  return times;
}

bool has_at_end(std::string_view text, std::string_view part, bool at_end) {
  return at_end ? text.ends_with(part) : text.starts_with(part);
}

template <bool at_end>
Value with_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, at_end ? "endswith" : "startswith", given, {"part", "start", "end"}, 1);
  const Window window = window_of(data_of(self), got, 1);
  if (!window.exists) return false;
  if (!std::holds_alternative<Tuple>(got.at(0))) return has_at_end(window.text, got.text(0).text, at_end);
  for (const Value& one : list_of(got.at(0))->items) {
    if (text_of(one) == nullptr) run.fail(fmt::format("startswith of {}, expected texts", a_type_of(one)));
    if (has_at_end(window.text, data_of(one).text, at_end)) return true;
  }
  return false;
}

template <bool at_end>
Value removed_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, at_end ? "removesuffix" : "removeprefix", given, {"part"}, 1);
  std::string_view text = data_of(self).text;
  const std::string_view part = got.text(0).text;
  if (!has_at_end(text, part, at_end)) return self;
  return like(run, self, at_end ? text.substr(0, text.size() - part.size()) : text.substr(part.size()));
}

Value join_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "join", given, {"iterable"}, 1);
  const bool safe = data_of(self).safe;
  const IteratorPtr items = items_of(run, got.at(0), "join");
  TextBuilder out(run);
  for (bool first = true; const auto item = items->next(run); first = false) {
    const TextData* text = text_of(*item);
    if (text == nullptr) run.fail(fmt::format("join of {}, expected texts", a_type_of(*item)));
    if (!first) out.add(data_of(self).text);
    out.add(safe && !text->safe ? escaped(run, text->text) : text->text);
  }
  return run.text(out.take(), safe);
}

const Value& fill_of(Rendering& run, const Parameters& got, const Value& space) {
  if (!got.has(1)) return space;
  if (got.text(1).length != 1) run.fail("a fill of several characters, expected one");
  return got.at(1);
}

template <char align>
Value justify_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "a justified text", given, {"width", "fillchar"}, 1);
  const Value space = run.text(" "), fill = fill_of(run, got, space);
  const std::string& text = data_of(self).text;
  return like(run, self,
              align == '^' ? centered(run, text, got.whole(0), data_of(fill).text)
                           : aligned(run, text, got.whole(0), data_of(fill).text, align));
}

Value zfill_method(Rendering& run, const Value& self, const Arguments& given) {
  const Parameters got(run, "zfill", given, {"width"}, 1);
  const std::string& text = data_of(self).text;
  const bool has_sign = text.starts_with("+") || text.starts_with("-");
  const std::int64_t width = std::max<std::int64_t>(got.whole(0), 0);
  const std::string filled =
      aligned(run, std::string_view(text).substr(has_sign ? 1 : 0), width - (has_sign ? 1 : 0), "0", '>');
  return like(run, self, text.substr(0, has_sign ? 1 : 0) + filled);
}

/// True if the text is not empty and all its characters pass the test.
template <bool (*is_so)(std::uint32_t)>
Value all_are(Rendering& run, const Value& self, const Arguments& given) {
  no_arguments(run, "a test of characters", given);
  const std::string& text = data_of(self).text;
  run.work_on_text(16 * text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (!is_so(next_character(text, at))) return false;
  }
  return !text.empty();
}

bool is_ascii(std::uint32_t c) {
  return c < 0x80;
}

Value isascii_method(Rendering& run, const Value& self, const Arguments& given) {
  return data_of(self).text.empty() ? Value(true) : all_are<is_ascii>(run, self, given);
}

bool is_number(std::uint32_t c) {
  return is_alnum(c) && !is_alpha(c);
}

/// Chinese characters may also be numbers, which Unicode's categories do not tell.
bool may_be_number(std::uint32_t c) {
  return is_number(c) || (is_alpha(c) && c >= 0x3400);
}

/// Fails for numbers that are not decimal digits, since the tables here do not tell which of them Python calls digits.
Value isdigit_method(Rendering& run, const Value& self, const Arguments& given) {
  const Value decimal = all_are<is_decimal>(run, self, given);
  if (!std::get<bool>(decimal) && std::get<bool>(all_are<is_number>(run, self, given))) {
    run.fail("isdigit of numbers that are no decimal digits is not supported");
  }
  return decimal;
}

Value isnumeric_method(Rendering& run, const Value& self, const Arguments& given) {
  const Value number = all_are<is_number>(run, self, given);
  if (!std::get<bool>(number) && std::get<bool>(all_are<may_be_number>(run, self, given))) {
    run.fail("isnumeric of Chinese characters is not supported");
  }
  return number;
}

/// True if the text has letters of this case and none of the other.
template <bool (*is_so)(std::uint32_t)>
Value all_cased_method(Rendering& run, const Value& self, const Arguments& given) {
  no_arguments(run, "a test of case", given);
  const std::string& text = data_of(self).text;
  run.work_on_text(16 * text.size());
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = next_character(text, at);
    if (is_cased(c) && !is_so(c)) return false;
    any = any || is_so(c);
  }
  return any;
}

Value format_method(Rendering& run, const Value& self, const Arguments& given) {
  return format_braces(run, data_of(self), given);
}

struct NamedTextMethod {
  std::string_view name;
  Method body;
};

constexpr auto methods = std::to_array<NamedTextMethod>({{"capitalize", changed_case<capitalize>},
                                                         {"casefold", casefold_method},
                                                         {"center", justify_method<'^'>},
                                                         {"count", count_method},
                                                         {"endswith", with_method<true>},
                                                         {"find", find_method<false, false>},
                                                         {"format", format_method},
                                                         {"index", find_method<false, true>},
                                                         {"isalnum", all_are<is_alnum>},
                                                         {"isalpha", all_are<is_alpha>},
                                                         {"isascii", isascii_method},
                                                         {"isdecimal", all_are<is_decimal>},
                                                         {"isdigit", isdigit_method},
                                                         {"islower", all_cased_method<is_lower>},
                                                         {"isnumeric", isnumeric_method},
                                                         {"isspace", all_are<is_space>},
                                                         {"isupper", all_cased_method<is_upper>},
                                                         {"join", join_method},
                                                         {"ljust", justify_method<'<'>},
                                                         {"lower", changed_case<lower>},
                                                         {"lstrip", strip_method<Side::left>},
                                                         {"partition", partition_method<false>},
                                                         {"removeprefix", removed_method<false>},
                                                         {"removesuffix", removed_method<true>},
                                                         {"replace", replace_method},
                                                         {"rfind", find_method<true, false>},
                                                         {"rindex", find_method<true, true>},
                                                         {"rjust", justify_method<'>'>},
                                                         {"rpartition", partition_method<true>},
                                                         {"rsplit", rsplit_method},
                                                         {"rstrip", strip_method<Side::right>},
                                                         {"split", split_method},
                                                         {"splitlines", splitlines_method},
                                                         {"startswith", with_method<false>},
                                                         {"strip", strip_method<Side::both>},
                                                         {"swapcase", changed_case<swapcase>},
                                                         {"title", changed_case<title>},
                                                         {"upper", changed_case<upper>},
                                                         {"zfill", zfill_method}});

}  // namespace

Method text_method(std::string_view name) {
  const auto* found =
      std::find_if(methods.begin(), methods.end(), [&](const NamedTextMethod& m) { return m.name == name; });
  return found == methods.end() ? nullptr : found->body;
}

std::string_view stripped(Rendering& run, std::string_view text, const TextData* characters, Side side) {
  std::vector<std::uint32_t> set;
  if (characters != nullptr) {
    run.room_for(characters->length, sizeof(std::uint32_t));
    run.work_on_text(16 * characters->text.size());
    for (std::size_t at = 0; at < characters->text.size();) set.push_back(next_character(characters->text, at));
    std::sort(set.begin(), set.end());
  }
  const auto goes = [&](std::uint32_t c) {
    return characters == nullptr ? is_space(c) : std::binary_search(set.begin(), set.end(), c);
  };
  const std::size_t whole = text.size();
  if (side != Side::right) {
    for (std::size_t at = 0; at < text.size();) {
      if (!goes(next_character(text, at))) break;
      text = text.substr(at);
      at = 0;
    }
  }
  if (side != Side::left) {
    for (std::size_t at = text.size(); at > 0;) {
      if (!goes(character_before(text, at))) break;
      text = text.substr(0, at);
    }
  }
  run.work_on_text(whole - text.size());
  return text;
}

std::string replaced(Rendering& run, std::string_view text, std::string_view old, std::string_view by,
                     std::int64_t count) {
  TextBuilder out(run);
  std::size_t added = 0, at = 0;
  while (count != 0) {
    const std::size_t found = find_text(run, text, old, at);
    if (found == std::string_view::npos) break;
    run.work();
    --count;
    out.add(text.substr(added, found - added));
    out.add(by);
    added = at = found + old.size();
    if (!old.empty()) continue;
    if (found >= text.size()) break;
    next_character(text, at);  // an empty `old` matches between all characters
  }
  out.add(text.substr(std::min(added, text.size())));
  return out.take();
}

std::vector<std::string_view> lines_of(std::string_view text, bool with_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const std::uint32_t c = next_character(text, at);
    const bool ends = (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (with_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

/// As Python does: an odd fill has its larger half on the left only if the width is odd.
std::string centered(Rendering& run, std::string_view text, std::int64_t width, std::string_view fill) {
  const auto length = static_cast<std::int64_t>(count_characters(text));
  if (width <= length) return std::string(text);
  const std::int64_t missing = width - length, left = missing / 2 + (missing & width & 1);
  return aligned(run, aligned(run, text, length + left, fill, '>'), width, fill, '<');
}

}  // namespace ferry::engine::jinja
