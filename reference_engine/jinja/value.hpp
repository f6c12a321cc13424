/// @file
/// What a template computes with: Python's values, as far as templates meet them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace ferry::engine::jinja {

class Object;
class Rendering;
struct TextData;
struct ListData;
class DictData;

/// What a missing name, attribute or item gives: prints as nothing, and fails where it is used.
struct Undefined {
  std::shared_ptr<const TextData> name;
};
struct None {};
struct Text {
  std::shared_ptr<const TextData> data;
};
struct List {
  std::shared_ptr<const ListData> data;
};
struct Tuple {
  std::shared_ptr<const ListData> data;
};
struct Dict {
  std::shared_ptr<const DictData> data;
};

/// Values do not change, but for a few kinds of objects.
using Value =
    std::variant<Undefined, None, bool, std::int64_t, double, Text, List, Tuple, Dict, std::shared_ptr<Object>>;
using Values = std::vector<Value>;

/// Bytes that the values of one rendering take while they live.
struct Account {
  std::size_t live = 0;
};

/// Some bytes on an account, as long as this lives. What a template itself holds is on no account.
class Charge {
 public:
  Charge() = default;
  Charge(Account& account, std::size_t bytes) : account_(&account) { grow(bytes); }
  Charge(Charge&& other) noexcept
      : account_(std::exchange(other.account_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() {
    if (account_ != nullptr) account_->live -= bytes_;
  }

  void grow(std::size_t bytes) {
    bytes_ += bytes;
    if (account_ != nullptr) account_->live += bytes;
  }

 private:
  Account* account_ = nullptr;
  std::size_t bytes_ = 0;
};

struct TextData {
  std::string text;    ///< valid UTF-8
  std::size_t length;  ///< characters
  bool safe = false;   ///< went through `safe` or `escape`: escapes what is added to it
  Charge charge;

  [[nodiscard]] bool ascii() const { return length == text.size(); }
};

struct ListData {
  Values items;
  std::uint32_t depth;
  Charge charge;
};

/// Keys and values in the order in which keys came.
class DictData {
 public:
  /// False if such a key cannot be in a dict.
  bool set(const Value& key, Value value);
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

  std::uint32_t depth = 1;
  Charge charge;

 private:
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string_view, std::size_t> texts_;  // views into the keys
  std::unordered_map<std::string, std::size_t> others_;
};

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Gives the items of something, once.
class Iterator;

/// Everything that is no plain value. What is not overridden, the object cannot do.
class Object : public std::enable_shared_from_this<Object> {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  /// Python's name of the type.
  [[nodiscard]] virtual std::string type() const = 0;
  /// As repr() shows it.
  [[nodiscard]] virtual std::string shown(Rendering& run) const;
  virtual std::optional<Value> attribute(Rendering& run, std::string_view name);
  virtual std::optional<Value> item(Rendering& run, const Value& key);
  virtual std::optional<std::size_t> length(Rendering& run);
  [[nodiscard]] virtual bool has_items() const { return false; }  ///< may be indexed
  /// None if it cannot be iterated.
  virtual std::shared_ptr<Iterator> items(Rendering& run);
  virtual std::optional<bool> contains(Rendering& run, const Value& value);
  [[nodiscard]] virtual bool callable() const { return false; }
  virtual Value call(Rendering& run, const Arguments& arguments);
  [[nodiscard]] virtual bool equals(Rendering& /*run*/, const Object& other) const { return this == &other; }

  std::uint32_t depth = 1;  ///< of the values within values, as destructors and repr() recurse
  Charge charge;
};

using ObjectPtr = std::shared_ptr<Object>;

class Iterator : public Object {
 public:
  virtual std::optional<Value> next(Rendering& run) = 0;

  [[nodiscard]] std::string type() const override { return "generator"; }
};

using IteratorPtr = std::shared_ptr<Iterator>;

/// A text that belongs to no rendering.
Value constant_text(std::string text);

/// Python's name of the type: "str", "dict".
std::string type_of(const Value& value);
/// The same in a sentence: "a str", "an undefined value".
std::string a_type_of(const Value& value);
std::uint32_t depth_of(const Value& value);

inline bool is_undefined(const Value& value) {
  return std::holds_alternative<Undefined>(value);
}
inline bool is_none(const Value& value) {
  return std::holds_alternative<None>(value);
}
/// The text, or none.
const TextData* text_of(const Value& value);
/// The items of a list or tuple, or none.
const ListData* list_of(const Value& value);
const DictData* dict_of(const Value& value);
/// A whole number or a truth value, which counts as 0 or 1.
std::optional<std::int64_t> whole_of(const Value& value);
/// Any number.
std::optional<double> number_of(const Value& value);

template <class T>
std::shared_ptr<T> object_of(const Value& value) {
  const auto* object = std::get_if<ObjectPtr>(&value);
  return object == nullptr ? nullptr : std::dynamic_pointer_cast<T>(*object);
}

/// What tells keys of a dict apart: the same for 1, 1.0 and true. None for lists and dicts.
std::optional<std::string> hash_key(const Value& value);

}  // namespace ferry::engine::jinja
