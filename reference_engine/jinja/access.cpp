#include "jinja/access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jinja/format.hpp"
#include "jinja/methods.hpp"
#include "jinja/objects.hpp"
#include "jinja/unicode.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

template <std::size_t N>
bool any_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Attributes of Python's numbers that are not supported, since no template needs them.
bool is_number_attribute(std::string_view name) {
  constexpr std::array<std::string_view, 12> names{
      "as_integer_ratio", "bit_count", "bit_length", "conjugate",  "denominator", "from_bytes",
      "fromhex",          "hex",       "imag",       "is_integer", "numerator",   "real"};
  return any_of(names, name) || name == "to_bytes";
}

Value method(Rendering& run, const Value& self, std::string_view name, Method body) {
  return run.make<Function>(
      depth_of(self) + 1, std::string(name),
      [self, body](Rendering& running, const Arguments& arguments) { return body(running, self, arguments); });
}

/// The attribute that Python's getattr finds. An undefined value: the sandbox hides the attribute.
std::optional<Value> plain_attribute(Rendering& run, const Value& value, const Value& name_value) {
  const TextData& name = *text_of(name_value);
  if (const auto* object = std::get_if<ObjectPtr>(&value)) return (*object)->attribute(run, name.text);
  if ((std::holds_alternative<List>(value) && changes_lists(name.text)) ||
      (std::holds_alternative<Dict>(value) && changes_dicts(name.text))) {
    return Undefined{std::get<Text>(name_value).data};
  }
  if (const Method body = method_of(value, name.text)) return method(run, value, name.text, body);
  if (is_unsupported_method(value, name.text) || (number_of(value) && is_number_attribute(name.text))) {
    run.fail(fmt::format("{} of {} is not supported", name.text, a_type_of(value)));
  }
  return std::nullopt;
}

/// The position of an index, which counts from the end if negative; none if it is out of range.
std::optional<std::size_t> place_of(std::int64_t index, std::size_t size) {
  const auto length = static_cast<std::int64_t>(size);
  if (index < 0) index += length;
  return index < 0 || index >= length ? std::nullopt : std::optional(static_cast<std::size_t>(index));
}

Value character_at(Rendering& run, const TextData& text, std::size_t index) {
  if (text.ascii()) return run.text(text.text.substr(index, 1), text.safe);
  run.work_on_text(16 * text.text.size());
  const std::size_t begin = byte_of(text.text, index);
  std::size_t end = begin;
  next_character(text.text, end);
  return run.text(text.text.substr(begin, end - begin), text.safe);
}

/// The item, or none where Python raises an IndexError, KeyError or TypeError.
std::optional<Value> plain_item(Rendering& run, const Value& value, const Value& key) {
  if (const DictData* dict = dict_of(value)) {
    const Value* found = dict->find(key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  if (const auto* object = std::get_if<ObjectPtr>(&value)) return (*object)->item(run, key);
  const auto index = whole_of(key);
  if (!index) return std::nullopt;
  if (const TextData* text = text_of(value)) {
    const auto place = place_of(*index, text->length);
    return place ? std::optional(character_at(run, *text, *place)) : std::nullopt;
  }
  const ListData* list = list_of(value);
  const auto place = list == nullptr ? std::nullopt : place_of(*index, list->items.size());
  return place ? std::optional(list->items[*place]) : std::nullopt;
}

Value undefined(Rendering& run, const Value& name) {
  if (const auto* text = std::get_if<Text>(&name)) return Undefined{text->data};
  const auto index = whole_of(name);
  return Undefined{
      std::get<Text>(run.text(index ? fmt::format("item {}", *index) : "the item of " + a_type_of(name))).data};
}

/// Where a slice begins, and how many steps it takes.
struct Cut {
  std::int64_t start, step;
  std::size_t count;
};

Cut cut_of(Rendering& run, const Slice& slice, std::size_t size) {
  const std::int64_t step = slice.step.value_or(1), length = static_cast<std::int64_t>(size);
  if (step == 0) run.fail("a slice with a step of 0, expected another");
  const std::int64_t least = step < 0 ? -1 : 0, most = step < 0 ? length - 1 : length;
  auto bound = [&](const std::optional<std::int64_t>& given, std::int64_t absent) {
    if (!given) return absent;
    return std::clamp(*given < 0 ? *given + length : *given, least, most);
  };
  const std::int64_t start = bound(slice.start, step < 0 ? most : least);
  const std::int64_t stop = bound(slice.stop, step < 0 ? least : most);
  const std::int64_t distance = step < 0 ? start - stop : stop - start;
  if (distance <= 0) return {start, step, 0};
  const auto stride = step < 0 ? -static_cast<std::uint64_t>(step) : static_cast<std::uint64_t>(step);
  return {start, step, static_cast<std::size_t>((static_cast<std::uint64_t>(distance) - 1) / stride + 1)};
}

/// The index of one of the cut's `count` items. It lies in the sequence, so that the product cannot overflow.
std::size_t index_of(const Cut& cut, std::size_t item) {
  return static_cast<std::size_t>(cut.start + (item == 0 ? 0 : static_cast<std::int64_t>(item) * cut.step));
}

Value cut_text(Rendering& run, const TextData& text, const Cut& cut) {
  run.work_on_text(16 * text.text.size());
  std::string out;
  if (text.ascii()) {
    if (cut.step == 1) return run.text(text.text.substr(static_cast<std::size_t>(cut.start), cut.count), text.safe);
    for (std::size_t i = 0; i < cut.count; ++i) out += text.text[index_of(cut, i)];
    return run.text(std::move(out), text.safe);
  }
  if (cut.step == 1) {
    const std::size_t begin = byte_of(text.text, static_cast<std::size_t>(cut.start));
    const std::string_view rest = std::string_view(text.text).substr(begin);
    return run.text(std::string(rest.substr(0, byte_of(rest, cut.count))), text.safe);
  }
  run.room_for(text.length, sizeof(std::uint32_t));
  std::vector<std::uint32_t> characters;
  characters.reserve(text.length);
  for (std::size_t at = 0; at < text.text.size();) characters.push_back(next_character(text.text, at));
  for (std::size_t i = 0; i < cut.count; ++i) append_character(out, characters[index_of(cut, i)]);
  return run.text(std::move(out), text.safe);
}

Value cut_range(Rendering& run, const Range& range, const Cut& cut) {
  if (cut.count == 0) return run.make<Range>(1, 0, 0, 1);
  const std::int64_t first = range.at(index_of(cut, 0)), last = range.at(index_of(cut, cut.count - 1));
  const std::int64_t step = cut.count > 1 ? range.at(index_of(cut, 1)) - first : 1;
  return run.make<Range>(1, first, step > 0 ? last + 1 : last - 1, step);
}

IteratorPtr iterate_list(Rendering& run, const Value& list) {
  return run.make<Generator>(depth_of(list) + 1, [list, at = std::size_t{0}](Rendering&) mutable {
    const Values& items = list_of(list)->items;
    return at < items.size() ? std::optional(items[at++]) : std::nullopt;
  });
}

IteratorPtr iterate_text(Rendering& run, const Value& text) {
  return run.make<Generator>(1, [text, at = std::size_t{0}](Rendering& running) mutable -> std::optional<Value> {
    const std::string& whole = text_of(text)->text;
    if (at >= whole.size()) return std::nullopt;
    const std::size_t begin = at;
    next_character(whole, at);
    return running.text(whole.substr(begin, at - begin));
  });
}

IteratorPtr iterate_keys(Rendering& run, const Value& dict) {
  return run.make<Generator>(depth_of(dict) + 1, [dict, at = std::size_t{0}](Rendering&) mutable {
    const auto& entries = dict_of(dict)->entries();
    return at < entries.size() ? std::optional(entries[at++].first) : std::nullopt;
  });
}

}  // namespace

bool changes_lists(std::string_view name) {
  constexpr std::array<std::string_view, 8> names{"append", "clear", "pop",    "reverse",
                                                  "insert", "sort",  "extend", "remove"};
  return any_of(names, name);
}

bool changes_dicts(std::string_view name) {
  constexpr std::array<std::string_view, 5> names{"clear", "pop", "popitem", "setdefault", "update"};
  return any_of(names, name);
}

Value attribute_of(Rendering& run, const Value& value, const Value& name) {
  if (is_undefined(value)) run.fail_undefined(value);
  if (auto found = plain_attribute(run, value, name)) return *std::move(found);
  if (const DictData* dict = dict_of(value)) {
    if (const Value* item = dict->find(text_of(name)->text)) return *item;
  }
  return undefined(run, name);
}

Value item_of(Rendering& run, const Value& value, const Value& key) {
  if (is_undefined(value)) run.fail_undefined(value);
  if (auto found = plain_item(run, value, key)) return *std::move(found);
  if (text_of(key) != nullptr) {
    if (auto found = plain_attribute(run, value, key)) return *std::move(found);
  }
  return undefined(run, key);
}

Value slice_of(Rendering& run, const Value& value, const Slice& slice) {
  if (is_undefined(value)) run.fail_undefined(value);
  if (const TextData* text = text_of(value)) return cut_text(run, *text, cut_of(run, slice, text->length));
  if (const ListData* list = list_of(value)) {
    const Cut cut = cut_of(run, slice, list->items.size());
    run.work(cut.count);
    run.room_for(cut.count, sizeof(Value));
    Values items;
    items.reserve(cut.count);
    for (std::size_t i = 0; i < cut.count; ++i) items.push_back(list->items[index_of(cut, i)]);
    return std::holds_alternative<List>(value) ? run.list(std::move(items)) : run.tuple(std::move(items));
  }
  if (const auto range = object_of<Range>(value)) return cut_range(run, *range, cut_of(run, slice, range->size()));
  run.fail(fmt::format("a slice of {}, expected a text, list or tuple", a_type_of(value)));
}

std::optional<std::size_t> length_of(Rendering& run, const Value& value) {
  if (is_undefined(value)) return 0;
  if (const TextData* text = text_of(value)) return text->length;
  if (const ListData* list = list_of(value)) return list->items.size();
  if (const DictData* dict = dict_of(value)) return dict->size();
  const auto* object = std::get_if<ObjectPtr>(&value);
  return object == nullptr ? std::nullopt : (*object)->length(run);
}

IteratorPtr try_items_of(Rendering& run, const Value& value) {
  if (is_undefined(value)) return iterate(run, {});
  if (text_of(value) != nullptr) return iterate_text(run, value);
  if (list_of(value) != nullptr) return iterate_list(run, value);
  if (dict_of(value) != nullptr) return iterate_keys(run, value);
  if (auto iterator = object_of<Iterator>(value)) return iterator;
  const auto* object = std::get_if<ObjectPtr>(&value);
  return object == nullptr ? nullptr : (*object)->items(run);
}

IteratorPtr items_of(Rendering& run, const Value& value, std::string_view who) {
  IteratorPtr items = try_items_of(run, value);
  if (items == nullptr) run.fail(fmt::format("{} of {}, expected something with items", who, a_type_of(value)));
  return items;
}

Values collect(Rendering& run, const Value& value, std::string_view who) {
  if (const ListData* list = list_of(value)) {
    run.room_for(list->items.size(), sizeof(Value));
    run.work(list->items.size());
    return list->items;
  }
  const IteratorPtr items = items_of(run, value, who);
  Values all;
  while (auto item = items->next(run)) {
    run.work();
    run.room_for(all.size() + 1, sizeof(Value));
    all.push_back(*std::move(item));
  }
  return all;
}

std::optional<Values> reversed(Rendering& run, const Value& value) {
  const bool has_order = is_undefined(value) || text_of(value) != nullptr || list_of(value) != nullptr ||
                         dict_of(value) != nullptr || object_of<Range>(value) != nullptr ||
                         object_of<DictView>(value) != nullptr;
  if (!has_order) return std::nullopt;
  Values items = collect(run, value, "the reverse");
  std::reverse(items.begin(), items.end());
  return items;
}

Value call(Rendering& run, const Value& function, const Arguments& arguments) {
  if (is_undefined(function)) run.fail_undefined(function);
  const auto* object = std::get_if<ObjectPtr>(&function);
  if (object == nullptr) run.fail(fmt::format("a call of {}, expected a function or a macro", a_type_of(function)));
  const ObjectPtr kept = *object;  // the call may change the variable that holds it
  return kept->call(run, arguments);
}

}  // namespace ferry::engine::jinja
