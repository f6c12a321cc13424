#include "support/json.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "support/errors.hpp"
#include "support/mapped_file.hpp"

namespace ferry::engine {

namespace {

template <class T>
T parse(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  constexpr int deepest = 100;               // values are taken apart by recursion
  auto check = [&](int depth, typename T::parse_event_t event, T& parsed) {
    if (depth > deepest) throw InputError(fmt::format("{}: nested more than {} deep", where, deepest));
    if (event == T::parse_event_t::object_start) names.emplace_back();
    if (event == T::parse_event_t::object_end) names.pop_back();
    if (event == T::parse_event_t::key && !names.back().insert(parsed.template get<std::string>()).second) {
      throw InputError(fmt::format("{}: \"{}\" stands twice", where, parsed.template get<std::string>()));
    }
    return true;
  };
  try {
    return T::parse(text.begin(), text.end(), check);
  } catch (const typename T::exception& e) {
    std::string what = e.what();  // "[json.exception...] parse error at line 1, column 2: ..."
    if (const auto bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    for (char& c : what) c = c == '\n' || static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    throw InputError(fmt::format("{}: {}", where, what.substr(0, 300)));
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  return parse<Json>(text, where);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  return parse<nlohmann::ordered_json>(text, where);
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
