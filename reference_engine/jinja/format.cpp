#include "jinja/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/operators.hpp"
#include "jinja/unicode.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

/// How repr() escapes a character; empty if it does not.
std::string repr_escape(std::uint32_t c, char quote) {
  if (c == static_cast<unsigned char>(quote) || c == '\\') return {'\\', static_cast<char>(c)};
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (is_printable(c)) return "";
  if (c < 0x100) return fmt::format("\\x{:02x}", c);
  return c < 0x10000 ? fmt::format("\\u{:04x}", c) : fmt::format("\\U{:08x}", c);
}

/// Adds a text, with characters replaced for which `escape` returns something.
template <class Escape>
void add_escaped(TextBuilder& out, std::string_view text, const Escape& escape) {
  std::size_t added = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const std::string instead = escape(next_character(text, at));
    if (instead.empty()) continue;
    out.add(text.substr(added, begin - added));
    out.add(instead);
    added = at;
  }
  out.add(text.substr(added));
}

void represent_text(TextBuilder& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos,
             has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.add(1, quote);
  add_escaped(out, text, [quote](std::uint32_t c) { return repr_escape(c, quote); });
  out.add(1, quote);
}

void represent(Rendering& run, TextBuilder& out, const Value& value);

void represent_dict(Rendering& run, TextBuilder& out, const DictData& dict) {
  out.add("{");
  bool first = true;
  for (const auto& [key, item] : dict.entries()) {
    out.add(std::exchange(first, false) ? "" : ", ");
    represent(run, out, key);
    out.add(": ");
    represent(run, out, item);
  }
  out.add("}");
}

void represent_items(Rendering& run, TextBuilder& out, const Value& value) {
  const bool is_list = std::holds_alternative<List>(value);
  const Values& items = list_of(value)->items;
  out.add(is_list ? "[" : "(");
  for (std::size_t i = 0; i < items.size(); ++i) {
    out.add(i == 0 ? "" : ", ");
    represent(run, out, items[i]);
  }
  out.add(is_list ? "]" : items.size() == 1 ? ",)" : ")");
}

void represent(Rendering& run, TextBuilder& out, const Value& value) {
  const Rendering::Deeper deeper(run);
  run.work();
  if (is_undefined(value)) {
    out.add("Undefined");
  } else if (const TextData* text = text_of(value)) {
    out.add(text->safe ? "Markup(" : "");
    represent_text(out, text->text);
    out.add(text->safe ? ")" : "");
  } else if (list_of(value) != nullptr) {
    represent_items(run, out, value);
  } else if (const DictData* dict = dict_of(value)) {
    represent_dict(run, out, *dict);
  } else if (const auto* object = std::get_if<ObjectPtr>(&value)) {
    out.add((*object)->shown(run));
  } else {
    out.add(printed(run, value));
  }
}

/// json.dumps, without the HTML-safe escapes of jinja2's own filter.
class JsonWriter {
 public:
  JsonWriter(Rendering& run, const JsonStyle& style) : run_(run), style_(style), out_(run) {}

  std::string written(const Value& value) {
    write(value, 0);
    return out_.take();
  }

 private:
  void write(const Value& value, std::size_t level) {
    const Rendering::Deeper deeper(run_);
    run_.work();
    if (const TextData* text = text_of(value)) {
      write_text(text->text);
    } else if (const ListData* list = list_of(value)) {
      write_list(*list, level);
    } else if (const DictData* dict = dict_of(value)) {
      write_dict(*dict, level);
    } else if (is_none(value) || number_of(value)) {
      out_.add(scalar(value));
    } else {
      run_.fail(fmt::format("tojson of {}, expected what JSON has", a_type_of(value)));
    }
  }

  static std::string scalar(const Value& value) {
    if (is_none(value)) return "null";
    if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
    if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
    const double number = std::get<double>(value);
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return float_text(number);
  }

  void write_text(std::string_view text) {
    out_.add("\"");
    add_escaped(out_, text, [this](std::uint32_t c) { return json_escape(c); });
    out_.add("\"");
  }

  [[nodiscard]] std::string json_escape(std::uint32_t c) const {
    constexpr std::string_view marked = "\"\\\n\r\t\f\b", names = "\"\\nrtfb";
    const std::size_t known = c < 0x80 ? marked.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) return {'\\', names[known]};
    if (c < 0x20 || (style_.ascii && c >= 0x80 && c < 0x10000)) return fmt::format("\\u{:04x}", c);
    if (!style_.ascii || c < 0x80) return "";
    const std::uint32_t beyond = c - 0x10000;  // a surrogate pair, as in UTF-16
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (beyond >> 10U), 0xdc00 + (beyond & 0x3ffU));
  }

  void new_line(std::size_t level) {
    if (!style_.indent) return;
    out_.add("\n");
    for (std::size_t i = 0; i < level; ++i) out_.add(*style_.indent);
  }

  void write_list(const ListData& list, std::size_t level) {
    if (list.items.empty()) return out_.add("[]");
    out_.add("[");
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.add(style_.between);
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    new_line(level);
    out_.add("]");
  }

  void write_dict(const DictData& dict, std::size_t level) {
    if (dict.size() == 0) return out_.add("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sorted) sort(entries);
    out_.add("{");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.add(style_.between);
      new_line(level + 1);
      write_key(entries[i]->first);
      out_.add(style_.behind_key);
      write(entries[i]->second, level + 1);
    }
    new_line(level);
    out_.add("}");
  }

  void sort(std::vector<const std::pair<Value, Value>*>& entries) {
    std::stable_sort(entries.begin(), entries.end(), [this](const auto* left, const auto* right) {
      return compare(run_, Comparator::less, left->first, right->first);
    });
  }

  void write_key(const Value& key) {
    if (const TextData* text = text_of(key)) return write_text(text->text);
    if (!is_none(key) && !number_of(key)) {
      run_.fail(fmt::format("tojson: a key is {}, expected a text or number", a_type_of(key)));
    }
    write_text(scalar(key));
  }

  Rendering& run_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";  // whatever its sign
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // but not behind 1e+16, inf or nan
  return text;
}

std::string printed(Rendering& run, const Value& value) {
  if (is_undefined(value)) return "";
  if (is_none(value)) return "None";
  if (const TextData* text = text_of(value)) return text->text;
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "True" : "False";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* real = std::get_if<double>(&value)) return float_text(*real);
  return represented(run, value);
}

std::string represented(Rendering& run, const Value& value) {
  TextBuilder out(run);
  represent(run, out, value);
  return out.take();
}

std::string shown_dict(Rendering& run, const DictData& dict) {
  TextBuilder out(run);
  represent_dict(run, out, dict);
  return out.take();
}

std::string to_json(Rendering& run, const Value& value, const JsonStyle& style) {
  return JsonWriter(run, style).written(value);
}

std::string aligned(Rendering& run, std::string_view text, std::int64_t width, std::string_view fill, char align) {
  const auto length = static_cast<std::int64_t>(count_characters(text));
  if (width <= length) return std::string(text);
  if (width > static_cast<std::int64_t>(longest_text)) run.room_for_text(longest_text + 1);
  const auto missing = static_cast<std::size_t>(width - length);
  const std::size_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  TextBuilder out(run);
  for (std::size_t i = 0; i < before; ++i) out.add(fill);
  out.add(text);
  for (std::size_t i = before; i < missing; ++i) out.add(fill);
  return out.take();
}

}  // namespace ferry::engine::jinja
