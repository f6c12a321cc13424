#include "jinja/filters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "jinja/access.hpp"
#include "jinja/format.hpp"
#include "jinja/methods.hpp"
#include "jinja/numbers.hpp"
#include "jinja/operators.hpp"
#include "jinja/text_methods.hpp"
#include "jinja/unicode.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

/// The text itself, or any other value as text.
Value soft_text(Rendering& run, const Value& value) {
  return text_of(value) != nullptr ? value : run.text(printed(run, value));
}

/// A filter that is a method of texts.
Value by_method(Rendering& run, const char* name, const Value& value, const Arguments& given) {
  const Value text = soft_text(run, value);
  return method_of(text, name)(run, text, given);
}

Value upper_filter(Rendering& run, const Value& value, const Arguments& given) {
  return by_method(run, "upper", value, given);
}

Value lower_filter(Rendering& run, const Value& value, const Arguments& given) {
  return by_method(run, "lower", value, given);
}

Value capitalize_filter(Rendering& run, const Value& value, const Arguments& given) {
  return by_method(run, "capitalize", value, given);
}

Value trim_filter(Rendering& run, const Value& value, const Arguments& given) {
  return by_method(run, "strip", value, given);
}

/// Unlike the method `title`, starts a word only after white space, a hyphen or an opening bracket.
Value title_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "title", given, {}, 0));
  const std::string text = printed(run, value);
  run.work_on_text(16 * text.size());
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    bool separates = false;
    while (at < text.size() && !separates) {
      const std::size_t before = at;
      const std::uint32_t c = next_character(text, at);
      separates = is_space(c) ||
                  std::string_view("-({[<").find(c < 0x80 ? static_cast<char>(c) : 'x') != std::string_view::npos;
      if (separates && before > begin) at = before;
    }
    const std::string_view word = std::string_view(text).substr(begin, at - begin);
    const std::size_t first = byte_of(word, 1);
    out += upper(word.substr(0, first)) + lower(word.substr(first));
  }
  return run.text(std::move(out));
}

Value replace_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "replace", given, {"old", "new", "count"}, 2);
  const bool counts = got.has(2) && !is_none(got.at(2));
  return run.text(
      replaced(run, printed(run, value), printed(run, got.at(0)), printed(run, got.at(1)), counts ? got.whole(2) : -1));
}

Value indent_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "indent", given, {"width", "first", "blank"}, 0);
  const TextData* text = text_of(value);
  if (text == nullptr) run.fail(fmt::format("indent of {}, expected a text", a_type_of(value)));
  const bool by_text = got.has(0) && text_of(got.at(0)) != nullptr;
  const std::string indention = by_text ? got.text(0).text : aligned(run, "", got.whole_or(0, 4), " ", '<');
  const bool blank = got.flag_or(2, false);
  const std::string whole = text->text + "\n";  // keeps a newline at the end
  TextBuilder out(run);
  if (got.flag_or(1, false)) out.add(indention);
  bool first = true;
  for (const std::string_view line : lines_of(whole, false)) {
    run.work();
    if (!std::exchange(first, false)) {
      out.add("\n");
      if (blank || !line.empty()) out.add(indention);
    }
    out.add(line);
  }
  return run.text(out.take(), text->safe);
}

Value center_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "center", given, {"width"}, 0);
  return by_method(run, "center", value, {{got.value_or(0, std::int64_t{80})}, {}});
}

Value default_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "default", given, {"default_value", "boolean"}, 0);
  const bool absent = is_undefined(value) || (got.flag_or(1, false) && !truth(run, value));
  if (!absent) return value;
  return got.has(0) ? got.at(0) : run.text("");
}

Value length_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "length", given, {}, 0));
  const auto length = length_of(run, value);
  if (!length) run.fail(fmt::format("the length of {}, expected a value that has one", a_type_of(value)));
  return static_cast<std::int64_t>(*length);
}

Value string_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "string", given, {}, 0));
  return soft_text(run, value);
}

Value safe_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "safe", given, {}, 0));
  return run.text(printed(run, value), true);
}

Value force_escape_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "escape", given, {}, 0));
  return run.text(escaped(run, printed(run, value)), true);
}

Value escape_filter(Rendering& run, const Value& value, const Arguments& given) {
  const TextData* text = text_of(value);
  return text != nullptr && text->safe ? value : force_escape_filter(run, value, given);
}

Value wordcount_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "wordcount", given, {}, 0));
  const std::string text = printed(run, value);
  run.work_on_text(16 * text.size());
  std::int64_t words = 0;
  bool within = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t c = next_character(text, at);
    const bool is_word = c == '_' || is_alnum(c);
    if (is_word && !within) ++words;
    within = is_word;
  }
  return words;
}

Value format_filter(Rendering& run, const Value& value, const Arguments& given) {
  if (!given.positional.empty() && !given.named.empty()) {
    run.fail("format got values with and without names, expected one of both");
  }
  const Value text = soft_text(run, value);
  if (given.named.empty()) return format_percent(run, *text_of(text), run.tuple(given.positional));
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, named] : given.named) entries.emplace_back(run.text(name), named);
  return format_percent(run, *text_of(text), run.dict(std::move(entries)));
}

/// The value as a whole number, or none where Python raises a TypeError or ValueError. `base` applies to texts only.
std::optional<Value> as_whole(Rendering& run, const Value& value, std::int64_t base) {
  if (is_undefined(value)) run.fail_undefined(value);
  if (const auto whole = whole_of(value)) return *whole;
  const TextData* text = text_of(value);
  if (text != nullptr) {
    if (const auto whole = parse_whole(run, text->text, base)) return *whole;
  }
  const auto real = text != nullptr ? parse_real(text->text) : number_of(value);
  if (!real || std::isnan(*real) || (std::isinf(*real) && text != nullptr)) return std::nullopt;
  return truncated(run, *real);
}

Value int_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "int", given, {"default", "base"}, 0);
  if (auto whole = as_whole(run, value, got.whole_or(1, 10))) return *std::move(whole);
  return got.value_or(0, std::int64_t{0});
}

Value float_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "float", given, {"default"}, 0);
  if (is_undefined(value)) run.fail_undefined(value);
  const TextData* text = text_of(value);
  const auto real = text != nullptr ? parse_real(text->text) : number_of(value);
  return real ? Value(*real) : got.value_or(0, 0.0);
}

Value abs_filter(Rendering& run, const Value& value, const Arguments& given) {
  static_cast<void>(Parameters(run, "abs", given, {}, 0));
  if (!number_of(value)) run.fail(fmt::format("abs of {}, expected a number", a_type_of(value)));
  return std::signbit(*number_of(value)) ? negated(run, value) : affirmed(run, value);
}

Value round_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "round", given, {"precision", "method"}, 0);
  const std::string method = got.has(1) ? got.text(1).text : "common";
  if (!number_of(value)) run.fail(fmt::format("round of {}, expected a number", a_type_of(value)));
  if (method == "common" && got.has(0) && is_none(got.at(0))) {  // like Python's round(value)
    const Value near = rounded(run, value, 0);
    return whole_of(near) ? near : Value(truncated(run, *number_of(near)));
  }
  const std::int64_t precision = got.whole_or(0, 0);
  if (method == "common") return rounded(run, value, precision);
  if (method != "ceil" && method != "floor") {
    run.fail(fmt::format("round by {}, expected common, ceil or floor", method));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = *number_of(value) * scale;
  if (!std::isfinite(scaled)) run.fail("round of such a number, expected a smaller one");
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

std::optional<std::string> indent_of(Rendering& run, const Parameters& got, std::size_t index) {
  if (!got.has(index) || is_none(got.at(index))) return std::nullopt;
  if (const TextData* text = text_of(got.at(index))) return text->text;
  return aligned(run, "", got.whole(index), " ", '<');
}

Value tojson_filter(Rendering& run, const Value& value, const Arguments& given) {
  const Parameters got(run, "tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ascii = got.flag_or(0, false);
  style.indent = indent_of(run, got, 1);
  style.sorted = got.flag_or(3, false);
  if (style.indent) style.between = ",";
  if (got.has(2) && !is_none(got.at(2))) {
    const Values separators = collect(run, got.at(2), "the separators of tojson");
    if (separators.size() != 2 || text_of(separators[0]) == nullptr || text_of(separators[1]) == nullptr) {
      run.fail("tojson got other separators, expected two texts");
    }
    style.between = text_of(separators[0])->text;
    style.behind_key = text_of(separators[1])->text;
  }
  return run.text(to_json(run, value, style));
}

struct NamedFilter {
  std::string_view name;
  Filter body;
};

constexpr auto filters = std::to_array<NamedFilter>({{"abs", abs_filter},       {"capitalize", capitalize_filter},
                                                     {"center", center_filter}, {"count", length_filter},
                                                     {"d", default_filter},     {"default", default_filter},
                                                     {"e", escape_filter},      {"escape", escape_filter},
                                                     {"float", float_filter},   {"forceescape", force_escape_filter},
                                                     {"format", format_filter}, {"indent", indent_filter},
                                                     {"int", int_filter},       {"length", length_filter},
                                                     {"lower", lower_filter},   {"replace", replace_filter},
                                                     {"round", round_filter},   {"safe", safe_filter},
                                                     {"string", string_filter}, {"title", title_filter},
                                                     {"tojson", tojson_filter}, {"trim", trim_filter},
                                                     {"upper", upper_filter},   {"wordcount", wordcount_filter}});

}  // namespace

Filter find_filter(std::string_view name) {
  const auto* found =
      std::find_if(filters.begin(), filters.end(), [&](const NamedFilter& f) { return f.name == name; });
  return found != filters.end() ? found->body : find_sequence_filter(name);
}

bool is_unsupported_filter(std::string_view name) {
  constexpr auto names =
      std::to_array<std::string_view>({"attr", "filesizeformat", "groupby", "pprint", "random", "striptags", "truncate",
                                       "urlencode", "urlize", "wordwrap", "xmlattr"});
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value apply_filter(Rendering& run, std::string_view name, const Value& value, const Arguments& given) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) {
    run.fail(fmt::format("a filter {}, expected {}", name,
                         is_unsupported_filter(name) ? "one that is supported" : "one that exists"));
  }
  return filter(run, value, given);
}

bool apply_test(Rendering& run, std::string_view name, const Value& value, const Arguments& given) {
  const Test test = find_test(name);
  if (test == nullptr) run.fail(fmt::format("a test {}, expected one that exists", name));
  return test(run, value, given);
}

}  // namespace ferry::engine::jinja
