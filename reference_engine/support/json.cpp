#include "support/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "support/errors.hpp"
#include "support/mapped_file.hpp"

namespace ferry::engine {

namespace {

/// Refuses what the library would accept: deep nesting, and objects with a name twice, of which it would keep only one. Its own
/// parser callbacks take quadratic time, since they go over a list or object again after each one within it.
class Checks final : public nlohmann::json_sax<Json> {
 public:
  Checks(const std::string& where, std::size_t most_names) : where_(where), most_names_(most_names) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override {
    names_.emplace_back();
    return go_deeper();
  }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second) throw InputError(fmt::format("{}: \"{}\" stands twice", where_, name));
    if (names_.back().size() > most_names_) {
      throw InputError(fmt::format("{}: an object has more than {} names", where_, most_names_));
    }
    return true;
  }
  bool end_object() override {
    names_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override { return go_deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  /// The parser that runs next reports the error.
  bool parse_error(std::size_t /*place*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*e*/) override {
    return false;
  }

 private:
  bool go_deeper() {
    constexpr int deepest = 100;  // values are processed by recursion
    if (++depth_ > deepest) throw InputError(fmt::format("{}: nested more than {} deep", where_, deepest));
    return true;
  }

  const std::string& where_;
  const std::size_t most_names_;
  std::vector<std::set<std::string>> names_;  // of the objects that are open
  int depth_ = 0;
};

template <class T>
T parse(std::string_view text, const std::string& where, std::size_t most_names) {
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {  // the parser would take it for the end
    throw InputError(fmt::format("{}: a NUL byte at {}, expected JSON", where, nul));
  }
  Checks checks(where, most_names);
  try {
    static_cast<void>(Json::sax_parse(text.begin(), text.end(), &checks));
    return T::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    std::string what = e.what();  // "[json.exception...] parse error at line 1, column 2: ..."
    if (const auto bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    for (char& c : what) c = c == '\n' || static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    throw InputError(fmt::format("{}: {}", where, what.substr(0, 300)));
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  return parse<Json>(text, where, std::numeric_limits<std::size_t>::max());
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  constexpr std::size_t most_names = 1024;  // each is compared with all before it
  return parse<nlohmann::ordered_json>(text, where, most_names);
}

Json read_json(const std::filesystem::path& path) {
  const MappedFile file(path, MappedFile::Hold::copied);
  return parse_json({reinterpret_cast<const char*>(file.data()), file.size()}, path.string());
}

Fields::Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw InputError(where_ + ": expected a JSON object");
}

bool Fields::has(const std::string& name) const {
  read_.insert(name);
  return object_.contains(name) && !object_[name].is_null();
}

bool Fields::is_null(const std::string& name) const {
  return object_.contains(name) && object_[name].is_null();
}

const Json& Fields::at(const std::string& name) const {
  read_.insert(name);
  if (!object_.contains(name)) throw InputError(fmt::format("{}: field \"{}\" is missing", where_, name));
  return object_[name];
}

void Fields::refuse(const std::string& name, const std::string& expected) const {
  const std::string got = object_.contains(name) ? json_text(object_[name]).substr(0, 100) : "nothing";
  throw InputError(fmt::format("{}: field \"{}\": expected {}, got {}", where_, name, expected, got));
}

std::vector<std::string> Fields::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    if (!value.is_null() && read_.count(name) == 0) names.push_back(name);
  }
  return names;
}

void Fields::refuse_others(std::initializer_list<const char*> for_people) const {
  for (const std::string& name : unread()) {
    if (std::find(for_people.begin(), for_people.end(), name) != for_people.end()) continue;
    std::string known;
    for (const std::string& other : read_) known += (known.empty() ? "" : ", ") + other;
    for (const char* other : for_people) known += fmt::format("{}{}", known.empty() ? "" : ", ", other);
    throw InputError(fmt::format("{}: field \"{:.100}\" is not known, expected {}", where_, name, known));
  }
}

std::uint32_t Fields::whole(const std::string& name, std::uint32_t least, std::uint32_t most) const {
  const Json& value = at(name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() < least || value.get<std::uint64_t>() > most) {
    refuse(name, fmt::format("a whole number from {} to {}", least, most));
  }
  return value.get<std::uint32_t>();
}

double Fields::number(const std::string& name, double above) const {
  const Json& value = at(name);
  if (!value.is_number() || !std::isnormal(static_cast<float>(value.get<double>())) || !(value.get<double>() > above)) {
    refuse(name, fmt::format("a number above {} that a float can hold", above));
  }
  return value.get<double>();
}

std::string Fields::text(const std::string& name) const {
  if (!at(name).is_string()) refuse(name, "a string");
  return at(name).get<std::string>();
}

bool Fields::flag(const std::string& name, bool absent) const {
  if (!has(name)) return absent;
  if (!object_[name].is_boolean()) refuse(name, "true or false");
  return object_[name].get<bool>();
}

}  // namespace ferry::engine
