/// @file
/// JSON from files that nobody vouches for.
#pragma once
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::engine {

using Json = nlohmann::json;

/// Parses; throws InputError for bad syntax, bad UTF-8, or a name that stands twice in one object.
/// `where` begins the message.
Json parse_json(std::string_view text, const std::string& where);
/// The same where the order of an object's fields matters.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

/// Reads and parses a file; throws InputError.
Json read_json(const std::filesystem::path& path);

/// A value as text. Names of files need not be UTF-8, and JSON has nothing else: bytes that are not become U+FFFD.
template <class Value>
std::string json_text(const Value& json, int indent = -1) {
  return json.dump(indent, ' ', false, Value::error_handler_t::replace);
}

/// A field of an object, checked. `where` begins the message of the InputError.
class Fields {
 public:
  Fields(const Json& object, std::string where);

  [[nodiscard]] bool has(const std::string& name) const;
  /// Whether it stands there as null, which is not always what its absence is.
  [[nodiscard]] bool is_null(const std::string& name) const;
  /// A whole number from `least` to `most`.
  [[nodiscard]] std::uint32_t whole(const std::string& name, std::uint32_t least, std::uint32_t most) const;
  /// A finite number above `above`.
  [[nodiscard]] double number(const std::string& name, double above) const;
  [[nodiscard]] std::string text(const std::string& name) const;
  [[nodiscard]] bool flag(const std::string& name, bool absent) const;
  [[nodiscard]] const Json& at(const std::string& name) const;
  [[noreturn]] void refuse(const std::string& name, const std::string& expected) const;

  /// Names of the fields that nobody has asked for, unless they are null.
  [[nodiscard]] std::vector<std::string> unread() const;
  /// Refuses the first of them that is not for people: misspelt, it would be without effect.
  void refuse_others(std::initializer_list<const char*> for_people) const;
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  mutable std::set<std::string> read_;
};

}  // namespace ferry::engine
