#include "stacks/stack_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ferry/error.hpp"
#include "stacks/parameters.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/suggest.hpp"

namespace ferry::engine {

bool is_stack_file(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

NamedStack read_stack(const std::string& name) {
  if (!is_stack_file(name)) {
    const auto& all = all_stacks();
    const bool known = std::any_of(all.begin(), all.end(), [&](const StackInfo& s) { return s.name == name; });
    if (!known) refuse_file_as_name("stack", name);
    return {"", name, find_stack(name).name, Json::object(), ""};
  }
  const Json json = read_json(name);
  const Fields fields(json, name);
  const std::vector<std::string> known = {"stack", "parameters", "calibrated"};
  for (const auto& [field, value] : json.items()) {
    if (std::find(known.begin(), known.end(), field) != known.end()) continue;
    throw InputError(fmt::format("{}: {}", name, unknown_name("field", field, known)));
  }
  NamedStack stack{name, printable(std::filesystem::path(name).stem().string()), fields.text("stack"), Json::object(),
                   ""};
  StackOptions options;
  options.stack = stack.policies;
  try {
    static_cast<void>(find_stack(stack.policies));
  } catch (const InputError& e) {
    throw InputError(fmt::format("{}: field \"stack\": {}", name, e.what()));
  }
  if (json.contains("parameters")) stack.parameters = json["parameters"];
  const std::string where = name + ": parameters";
  set_parameters(options, stack.parameters, where);
  for (const auto& [parameter, value] : stack.parameters.items()) {
    if (takes_parameter(stack.policies, find_parameter(parameter, where).member(), options.pools)) continue;
    throw InputError(fmt::format("{}: field \"{}\": {} has no such parameter", where, parameter, stack.policies));
  }
  try {
    check_parameters(options);
  } catch (const ConfigError& e) {
    throw InputError(fmt::format("{}: {}", where, e.what()));
  }
  return stack;
}

NamedStack read_stack(const std::string& name, const std::string& model) {
  NamedStack stack = read_stack(name);
  if (!stack.file.empty() || model.empty() || model.find('/') != std::string::npos || model.starts_with('.'))
    return stack;
  const std::filesystem::path in = std::filesystem::path("calibrated") / model / (stack.policies + ".json");
  const std::filesystem::path file = data_directory() / in;
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none)) return stack;
  const NamedStack calibrated = read_stack(file.string());
  if (calibrated.policies != stack.policies) {
    throw InputError(fmt::format("{}: field \"stack\": expected \"{}\", by its name", file.string(), stack.policies));
  }
  stack.parameters = calibrated.parameters;
  stack.calibrated = in.string();
  return stack;
}

Json own_parameters(const NamedStack& stack, const Json& given) {
  Json own = stack.parameters;
  const std::string t1 = parameter_of(&StackOptions::t1).name, t2 = parameter_of(&StackOptions::t2).name;
  if (!stack.calibrated.empty() && (given.contains(t1) || given.contains(t2))) {
    own.erase(t1);
    own.erase(t2);
  }
  return own;
}

Json parameters_of(const NamedStack& stack, const Json& given) {
  Json all = own_parameters(stack, given), taken = Json::object();
  all.update(given);
  StackOptions o;
  set_parameters(o, all, stack.label);
  for (const auto& [name, value] : all.items()) {
    const ParameterMember member = find_parameter(name, stack.label).member();
    const bool says_nothing = member == ParameterMember(&StackOptions::pools) && o.pools == PoolChoice::stack;
    if (!says_nothing && takes_parameter(stack.policies, member, o.pools)) taken[name] = value;
  }
  return taken;
}

void check_labels(const std::vector<NamedStack>& stacks) {
  for (const NamedStack& a : stacks) {
    for (const NamedStack& b : stacks) {
      if (&a == &b || a.label != b.label || b.file.empty()) continue;
      throw InputError(fmt::format("{} and {}: reports would call both {}, expected files of other names",
                                   a.file.empty() ? a.label : a.file, b.file, a.label));
    }
  }
}

}  // namespace ferry::engine
