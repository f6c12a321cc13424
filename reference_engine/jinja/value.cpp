#include "jinja/value.hpp"

#include <fmt/format.h>

#include <cmath>

#include "jinja/rendering.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {
namespace {

std::string number_key(double number) {
  constexpr double beyond = 9223372036854775808.0;
  if (std::floor(number) == number && number >= -beyond && number < beyond) {
    return fmt::format("i{}", static_cast<std::int64_t>(number));
  }
  return fmt::format("f{}", number);
}

/// The key of a tuple. Its length is limited, since a tuple may hold another many times over.
std::optional<std::string> tuple_key(const ListData& tuple) {
  constexpr std::size_t longest = 1U << 20U;
  std::string key = "(";
  for (const Value& item : tuple.items) {
    const std::optional<std::string> one = hash_key(item);
    if (!one || key.size() + one->size() > longest) return std::nullopt;
    key += fmt::format("{}:", one->size()) + *one;
  }
  return key;
}

}  // namespace

bool DictData::set(const Value& key, Value value) {
  std::size_t index = entries_.size();
  if (const TextData* text = text_of(key)) {
    index = texts_.try_emplace(text->text, index).first->second;
  } else if (const std::optional<std::string> other = hash_key(key)) {
    index = others_.try_emplace(*other, index).first->second;
  } else {
    return false;
  }
  if (index == entries_.size()) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[index].second = std::move(value);
  }
  return true;
}

const Value* DictData::find(std::string_view key) const {
  const auto found = texts_.find(key);
  return found == texts_.end() ? nullptr : &entries_[found->second].second;
}

const Value* DictData::find(const Value& key) const {
  if (const TextData* text = text_of(key)) return find(text->text);
  const std::optional<std::string> other = hash_key(key);
  const auto found = other ? others_.find(*other) : others_.end();
  return found == others_.end() ? nullptr : &entries_[found->second].second;
}

std::string Object::shown(Rendering& run) const {
  run.fail(type() + " as text, expected a value that has one (of a generator, its list)");
}

std::optional<Value> Object::attribute(Rendering& /*run*/, std::string_view /*name*/) {
  return std::nullopt;
}

std::optional<Value> Object::item(Rendering& /*run*/, const Value& /*key*/) {
  return std::nullopt;
}

std::optional<std::size_t> Object::length(Rendering& /*run*/) {
  return std::nullopt;
}

IteratorPtr Object::items(Rendering& /*run*/) {
  return nullptr;
}

std::optional<bool> Object::contains(Rendering& /*run*/, const Value& /*value*/) {
  return std::nullopt;
}

Value Object::call(Rendering& run, const Arguments& /*arguments*/) {
  run.fail("a call of a " + type() + ", expected a function or a macro");
}

Value constant_text(std::string text) {
  const std::size_t length = count_characters(text);
  return Text{std::make_shared<const TextData>(TextData{std::move(text), length, false, {}})};
}

std::string type_of(const Value& value) {
  struct Namer {
    std::string operator()(const Undefined& /*value*/) { return "undefined"; }
    std::string operator()(const None& /*value*/) { return "None"; }
    std::string operator()(bool /*value*/) { return "bool"; }
    std::string operator()(std::int64_t /*value*/) { return "int"; }
    std::string operator()(double /*value*/) { return "float"; }
    std::string operator()(const Text& /*value*/) { return "str"; }
    std::string operator()(const List& /*value*/) { return "list"; }
    std::string operator()(const Tuple& /*value*/) { return "tuple"; }
    std::string operator()(const Dict& /*value*/) { return "dict"; }
    std::string operator()(const ObjectPtr& value) { return value->type(); }
  };
  return std::visit(Namer(), value);
}

std::string a_type_of(const Value& value) {
  const std::string type = type_of(value);
  if (is_none(value)) return type;
  const bool vowel = std::string_view("aeiou").find(type[0]) != std::string_view::npos;
  return (vowel ? "an " : "a ") + type + (is_undefined(value) ? " value" : "");
}

std::uint32_t depth_of(const Value& value) {
  if (const ListData* list = list_of(value)) return list->depth;
  if (const DictData* dict = dict_of(value)) return dict->depth;
  const auto* object = std::get_if<ObjectPtr>(&value);
  return object == nullptr ? 0 : (*object)->depth;
}

const TextData* text_of(const Value& value) {
  const auto* text = std::get_if<Text>(&value);
  return text == nullptr ? nullptr : text->data.get();
}

const ListData* list_of(const Value& value) {
  if (const auto* list = std::get_if<List>(&value)) return list->data.get();
  const auto* tuple = std::get_if<Tuple>(&value);
  return tuple == nullptr ? nullptr : tuple->data.get();
}

const DictData* dict_of(const Value& value) {
  const auto* dict = std::get_if<Dict>(&value);
  return dict == nullptr ? nullptr : dict->data.get();
}

std::optional<std::int64_t> whole_of(const Value& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? 1 : 0;
  const auto* whole = std::get_if<std::int64_t>(&value);
  return whole == nullptr ? std::nullopt : std::optional(*whole);
}

std::optional<double> number_of(const Value& value) {
  if (const auto whole = whole_of(value)) return static_cast<double>(*whole);
  const auto* real = std::get_if<double>(&value);
  return real == nullptr ? std::nullopt : std::optional(*real);
}

std::optional<std::string> hash_key(const Value& value) {
  if (const auto whole = whole_of(value)) return fmt::format("i{}", *whole);
  if (const auto* real = std::get_if<double>(&value)) return number_key(*real);
  if (const TextData* text = text_of(value)) return "s" + text->text;
  if (is_none(value)) return "n";
  if (is_undefined(value)) return "u";
  if (std::holds_alternative<Tuple>(value)) return tuple_key(*list_of(value));
  if (const auto* object = std::get_if<ObjectPtr>(&value)) return fmt::format("p{}", fmt::ptr(object->get()));
  return std::nullopt;
}

}  // namespace ferry::engine::jinja
