#include "jinja/rendering.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "jinja/access.hpp"
#include "jinja/errors.hpp"
#include "jinja/format.hpp"
#include "jinja/objects.hpp"
#include "jinja/operators.hpp"
#include "support/utf8.hpp"

namespace ferry::engine::jinja {

Rendering::~Rendering() {
  for (const auto& each : namespaces_) each->clear();
}

void Rendering::fail(const std::string& what) const {
  fail_at(name_, line_, what);
}

void Rendering::fail_undefined(const Value& value) const {
  const auto* undefined = std::get_if<Undefined>(&value);
  const std::string name = undefined != nullptr && undefined->name ? undefined->name->text : "the value";
  fail(fmt::format("{} is undefined{}, expected a value", shortened(name),
                   changes_lists(name) || changes_dicts(name) ? " (lists and dicts cannot be changed)" : ""));
}

void Rendering::too_much_work() const {
  fail(fmt::format("it takes more than {} steps, expected a template that ends sooner", most_steps));
}

void Rendering::too_deep() {
  --recursion_;  // the guard's constructor throws, so that its destructor will not do this
  fail(fmt::format("recursion is more than {} deep, expected less", deepest_recursion));
}

void Rendering::check_depth(std::uint32_t depth) const {
  if (depth > deepest_value) fail(fmt::format("values within values, more than {} deep, expected less", deepest_value));
}

void Rendering::room_for(std::size_t items, std::size_t bytes_each) const {
  if (items > most_bytes / bytes_each || account_.live + items * bytes_each > most_bytes) {
    fail(fmt::format("values take more than {} bytes, expected less", most_bytes));
  }
}

void Rendering::room_for_text(std::size_t bytes) const {
  if (bytes > longest_text) fail(fmt::format("a text is longer than {} bytes, expected less", longest_text));
  room_for(bytes, 1);
}

Value Rendering::text(std::string text, bool safe) {
  room_for_text(text.size());
  work_on_text(text.size());
  const std::size_t length = count_characters(text), bytes = sizeof(TextData) + overhead + text.size();
  return Text{std::make_shared<const TextData>(TextData{std::move(text), length, safe, Charge(account_, bytes)})};
}

std::shared_ptr<const ListData> Rendering::hold(Values items) {
  work(items.size() / 16);
  std::uint32_t depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  check_depth(depth + 1);
  room_for(items.size() + 4, sizeof(Value));
  const std::size_t bytes = items.size() * sizeof(Value) + sizeof(ListData) + overhead;
  return std::make_shared<const ListData>(ListData{std::move(items), depth + 1, Charge(account_, bytes)});
}

Value Rendering::dict(std::vector<std::pair<Value, Value>> entries) {
  constexpr std::size_t bytes_an_entry = 2 * sizeof(Value) + 64;
  work(entries.size());
  room_for(entries.size() + 4, bytes_an_entry);
  auto made = std::make_shared<DictData>();
  for (auto& [key, value] : entries) {
    made->depth = std::max({made->depth, depth_of(key) + 1, depth_of(value) + 1});
    if (!made->set(key, std::move(value))) {
      fail(fmt::format("a key of a dict is {}, expected a text or number", a_type_of(key)));
    }
  }
  check_depth(made->depth);
  made->charge = Charge(account_, made->size() * bytes_an_entry + sizeof(DictData) + overhead);
  return Dict{std::move(made)};
}

void Rendering::keep(std::shared_ptr<Namespace> made) {
  if (namespaces_.size() >= most_kept) fail(fmt::format("more than {} namespaces, expected fewer", most_kept));
  namespaces_.push_back(std::move(made));
}

void TextBuilder::add(std::size_t times, char c) {
  run_.room_for_text(text_.size() + std::min(times, longest_text + 1));
  run_.work_on_text(times);
  charge_.grow(times);
  text_.append(times, c);
}

Parameters::Parameters(Rendering& run, std::string function, const Arguments& given,
                       std::vector<std::string_view> names, std::size_t required)
    : run_(run), function_(std::move(function)), names_(std::move(names)), given_(names_.size(), nullptr) {
  if (given.positional.size() > names_.size()) {
    run_.fail(
        fmt::format("{} got {} arguments, expected {} at most", function_, given.positional.size(), names_.size()));
  }
  for (std::size_t i = 0; i < given.positional.size(); ++i) given_[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto at = static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
    if (at == names_.size() || given_[at] != nullptr) {
      run_.fail(fmt::format("{} got {} {}, expected {}", function_, at == names_.size() ? "an argument" : "a second",
                            name, fmt::join(names_, ", ")));
    }
    given_[at] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!has(i)) run_.fail(fmt::format("{} got no {}, expected one", function_, names_[i]));
  }
}

const TextData& Parameters::text(std::size_t index) const {
  const TextData* text = text_of(at(index));
  if (text == nullptr) {
    run_.fail(fmt::format("{}: {} is {}, expected a text", function_, names_[index], a_type_of(at(index))));
  }
  return *text;
}

std::int64_t Parameters::whole(std::size_t index) const {
  const std::optional<std::int64_t> whole = whole_of(at(index));
  if (!whole) {
    run_.fail(fmt::format("{}: {} is {}, expected a whole number", function_, names_[index], a_type_of(at(index))));
  }
  return *whole;
}

bool Parameters::flag_or(std::size_t index, bool fallback) const {
  return has(index) ? truth(run_, at(index)) : fallback;
}

}  // namespace ferry::engine::jinja
