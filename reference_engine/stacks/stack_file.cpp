#include "stacks/stack_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ferry/error.hpp"
#include "stacks/budget.hpp"
#include "support/errors.hpp"
#include "support/suggest.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::engine {
namespace {

void refuse_others(const Json& object, const std::vector<std::string>& known, const char* kind,
                   const std::string& where) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw InputError(fmt::format("{}: {}", where, unknown_name(kind, name, known)));
    }
  }
}

}  // namespace

bool is_stack_file(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

void set_parameters(StackOptions& o, const Json& parameters, const std::string& where) {
  const Fields fields(parameters, where);
  refuse_others(parameters,
                {"t1", "t2", "alpha", "low-share", "low-bits", "high-bits", "shallow-layers", "percentile", "depth",
                 "cache-weights", "pools"},
                "parameter", where);
  auto share = [&](const char* name, std::optional<float>& to) {
    if (!parameters.contains(name)) return;
    const Json& value = parameters[name];
    const double v = value.is_number() ? value.get<double>() : -1;
    if (!(v >= 0 && v <= 1)) fields.refuse(name, "a number from 0 to 1");
    to = static_cast<float>(v);
  };
  auto whole = [&](const char* name, std::optional<std::uint32_t>& to, std::uint32_t least, std::uint32_t most) {
    if (parameters.contains(name)) to = fields.whole(name, least, most);
  };
  auto bits = [&](const char* name, std::optional<std::uint32_t>& to) {
    whole(name, to, 2, 8);
    if (parameters.contains(name) && to != 2 && to != 4 && to != 8) fields.refuse(name, "2, 4 or 8");
  };
  share("t1", o.t1);
  share("t2", o.t2);
  if (parameters.contains("t1") && parameters.contains("t2") && *o.t1 > *o.t2) {
    fields.refuse("t1", fmt::format("at most t2, {}", *o.t2));
  }
  share("alpha", o.alpha);
  whole("low-share", o.low_share_percent, 0, 100);
  bits("low-bits", o.low_bits);
  bits("high-bits", o.high_bits);
  whole("shallow-layers", o.shallow_layers, 0, 65535);
  whole("percentile", o.percentile, 0, 100);
  whole("depth", o.depth, 1, 4);
  if (parameters.contains("cache-weights")) {
    const Json& weights = parameters["cache-weights"];
    std::array<std::uint32_t, 4> w{};
    std::uint64_t sum = 0;
    bool good = weights.is_array() && weights.size() == w.size();
    for (std::size_t i = 0; good && i < w.size(); ++i) {
      good = weights[i].is_number_unsigned() && weights[i].get<std::uint64_t>() <= 1000;
      if (good) sum += w[i] = weights[i].get<std::uint32_t>();
    }
    if (!good || sum != 1000) fields.refuse("cache-weights", "four thousandths (LRU, LFU, LHU, FLD) that sum to 1000");
    o.cache_weights = w;
  }
  if (parameters.contains("pools")) {
    const std::string pools = fields.text("pools");
    const auto known = {"stack", "per-layer", "one", "shallow"};
    if (std::find(known.begin(), known.end(), pools) == known.end()) {
      fields.refuse("pools", fmt::format("one of {}", fmt::join(known, ", ")));
    }
    o.pools = pool_choice(pools);
  }
}

NamedStack read_stack(const std::string& name) {
  if (!is_stack_file(name)) return {"", name, find_stack(name).name, Json::object()};
  const Json json = read_json(name);
  const Fields fields(json, name);
  refuse_others(json, {"stack", "parameters", "calibrated"}, "field", name);
  NamedStack stack{name, printable(std::filesystem::path(name).stem().string()), fields.text("stack"), Json::object()};
  const std::string where = name + ": parameters";
  StackOptions options;
  options.stack = stack.policies;
  try {
    static_cast<void>(find_stack(stack.policies));
  } catch (const InputError& e) {
    throw InputError(fmt::format("{}: field \"stack\": {}", name, e.what()));
  }
  if (json.contains("parameters")) stack.parameters = json["parameters"];
  set_parameters(options, stack.parameters, where);
  for (const auto& [parameter, value] : stack.parameters.items()) {
    const bool takes = parameter == "pools" ? find_stack(stack.policies).chooses_pools
                                            : takes_parameter(stack.policies, "--" + parameter, options.pools);
    if (!takes) {
      throw InputError(fmt::format("{}: field \"{}\": {} has no such parameter", where, parameter, stack.policies));
    }
  }
  try {
    static_cast<void>(precisions_for(options));
  } catch (const ConfigError& e) {
    throw InputError(fmt::format("{}: {}", where, e.what()));
  }
  return stack;
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
