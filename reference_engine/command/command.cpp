#include "command/command.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "support/errors.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::engine {

std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;

const CLI::Validator not_empty([](const std::string& s) { return s.empty() ? "must not be empty" : ""; }, "");

std::string stacks_help() {
  std::string text = "Stacks:\n";
  for (const StackInfo& s : all_stacks()) text += fmt::format("  {:<20} {}\n", s.name, s.what);
  return text +
         "  a file               such a stack with parameters, of `ferry calibrate`: with a slash, or ending in "
         ".json\n";
}

void StackFlags::add_budget(CLI::App* c) {
  c->add_option("--budget", budget,
                "device memory for experts: a share of all of them (25%) or a size (8000000, 64MiB)")
      ->type_name("SHARE|BYTES")
      ->check(not_empty)
      ->capture_default_str();
}

void StackFlags::add_parameters(CLI::App* c) {
  c->add_option("--pools", pools,
                "slots: as the stack's paper has them, a pool for each layer, one over all layers, or the shallow "
                "layers whole (default: stack)")
      ->check(CLI::IsMember({"stack", "per-layer", "one", "shallow"}));
  c->add_option("--t1", t1, "HOBBIT: full precision up to this unimportance (default: 0.6)")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  c->add_option("--t2", t2, "HOBBIT: low precision up to this unimportance, skip above it (default: 0.9)")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  c->add_option("--alpha", alpha, "importance-driven: how far scores may be apart and still stand in (default: 0.3)")
      ->type_name("A")
      ->check(CLI::Range(0.0, 1.0));
  c->add_option("--low-share", low_share, "Fate: percent of a prefill's load that may be INT2 (default: 30)")
      ->type_name("PERCENT")
      ->check(CLI::Range(0, 100));
  c->add_option("--low-bits", low_bits, "HOBBIT, Fate: what unimportant experts shrink to (default: 4 and 2)")
      ->type_name("2|4|8")
      ->check(CLI::IsMember({2, 4, 8}));
  c->add_option("--high-bits", high_bits, "HOBBIT, Fate: what important experts have (default: the model's own, and 4)")
      ->type_name("2|4|8")
      ->check(CLI::IsMember({2, 4, 8}));
  c->add_option("--cache-weights", cache_weights,
                "HOBBIT: LRU,LFU,LHU,FLD in thousandths, 1000 in all (default: 700,100,100,100)")
      ->type_name("W,W,W,W")
      ->delimiter(',')
      ->expected(4)
      ->check(CLI::Range(0, 1000));
  c->add_option("--shallow-layers", shallow_layers, "Fate: layers that are cached whole first (default: 4)")
      ->type_name("N")
      ->check(CLI::Range(0, 65535));
  c->add_option("--percentile", percentile, "Fate: prefetch experts above this percentile (default: 75)")
      ->type_name("PERCENT")
      ->check(CLI::Range(0, 100));
  c->add_option("--depth", depth, "how many layers ahead to look (default: 3 for HOBBIT)")
      ->type_name("N")
      ->check(CLI::Range(1, 4));
}

Json StackFlags::given() const {
  Json all = Json::object();
  auto share = [&](const char* name, const std::optional<float>& value) {
    if (value) all[name] = std::stod(fmt::format("{}", *value));  // 0.6, not the float next to it
  };
  auto whole = [&](const char* name, const std::optional<std::uint32_t>& value) {
    if (value) all[name] = *value;
  };
  share("t1", t1);
  share("t2", t2);
  share("alpha", alpha);
  whole("low-share", low_share);
  whole("shallow-layers", shallow_layers);
  whole("percentile", percentile);
  whole("depth", depth);
  whole("low-bits", low_bits);
  whole("high-bits", high_bits);
  if (!cache_weights.empty()) all["cache-weights"] = cache_weights;
  if (pools) all["pools"] = *pools;
  return all;
}

const NamedStack& StackFlags::named(const std::string& stack) const {
  const auto found = named_.find(stack);
  return found != named_.end() ? found->second : named_.emplace(stack, read_stack(stack)).first->second;
}

bool StackFlags::takes(const std::string& stack, const std::string& parameter) const {
  const std::string& policies = named(stack).policies;
  StackOptions o;
  set(o, stack);
  return parameter == "pools" ? find_stack(policies).chooses_pools
                              : takes_parameter(policies, "--" + parameter, o.pools);
}

Json StackFlags::taken_by(const std::string& stack) const {
  Json taken = named(stack).parameters;
  const Json flags = given();
  for (const auto& [name, value] : flags.items()) {
    if (takes(stack, name)) taken[name] = value;
  }
  if (taken.contains("pools") && taken["pools"] == "stack") taken.erase("pools");
  return taken;
}

void StackFlags::check(const std::vector<std::string>& names) const {
  std::vector<NamedStack> stacks;
  std::vector<std::string> policies;
  for (const std::string& name : names) {
    stacks.push_back(named(name));
    policies.push_back(stacks.back().policies);
  }
  check_labels(stacks);
  const Json flags = given();
  for (const auto& flag : flags.items()) {
    const std::string& p = flag.key();
    auto takes_it = [&](const std::string& stack) { return takes(stack, p); };
    // A resident stack may be compared with others, whatever their pools.
    if (p == "pools" || std::any_of(names.begin(), names.end(), takes_it)) continue;
    std::vector<std::string> those;
    for (const StackInfo& s : all_stacks()) {
      if (takes_it(s.name)) those.push_back(s.name);
    }
    throw InputError(fmt::format("--{}: {} has no such parameter; stacks that do: {}", p, fmt::join(policies, ", "),
                                 fmt::join(those, ", ")));
  }
}

void StackFlags::set(StackOptions& o, const std::string& stack) const {
  StackOptions fresh;
  fresh.budget_bytes = o.budget_bytes;
  fresh.max_rows = o.max_rows;
  fresh.stack = named(stack).policies;
  set_parameters(fresh, named(stack).parameters, stack + ": parameters");
  set_parameters(fresh, given(), "the command line");
  o = fresh;
}

std::vector<std::string> stack_files(const std::vector<std::string>& stacks) {
  std::vector<std::string> files;
  std::copy_if(stacks.begin(), stacks.end(), std::back_inserter(files), is_stack_file);
  return files;
}

}  // namespace ferry::engine
