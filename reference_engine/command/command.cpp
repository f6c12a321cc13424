#include "command/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "sweep/simulated_run.hpp"

namespace ferry::engine {

std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;

const CLI::Validator not_empty([](const std::string& s) { return s.empty() ? "must not be empty" : ""; }, "");

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno != EPIPE) throw InputError(fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
}

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

std::filesystem::path find_model(const std::string& name) {
  std::error_code none;
  const auto bundled = data_directory() / "models" / name;
  const bool folder = std::filesystem::is_directory(name, none);
  if (!folder && name.find('/') == std::string::npos && std::filesystem::is_directory(bundled, none)) return bundled;
  if (!folder) {
    throw InputError(
        fmt::format("--model {}: no such folder; bundled models are tiny-qwen-moe and tiny-mixtral", name));
  }
  return name;
}

std::string model_name(const std::string& model) {
  const std::filesystem::path path = model;
  const std::string name = path.filename().string();
  return name.empty() ? path.parent_path().filename().string() : name;
}

std::string read_text(const std::string& option, const std::string& path) {
  constexpr std::size_t largest = 1U << 26U;  // no context is as long
  std::string text;
  std::error_code none;
  std::ifstream in(path, std::ios::binary);
  bool good = in && !std::filesystem::is_directory(path, none) && !std::filesystem::is_fifo(path, none);
  char block[65536];
  while (good && text.size() <= largest) {
    in.read(block, sizeof(block));
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (in.eof()) return text;
    good = in.good();
  }
  throw InputError(good ? fmt::format("{} {}: larger than {} bytes", option, path, largest)
                        : fmt::format("{} {}: cannot be read", option, path));
}

void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  std::set<std::filesystem::path> files;
  for (const std::string& out : outputs) {
    if (out.empty()) continue;
    if (!files.insert(file_behind(out)).second) {
      throw InputError(fmt::format("{}: named for two outputs, expected two files", out));
    }
    for (const std::string& in : inputs) {
      std::error_code none;
      if (!in.empty() && std::filesystem::equivalent(in, out, none)) {
        throw InputError(fmt::format("{}: is read by this run, so it cannot be written by it", out));
      }
    }
  }
}

ProgressLine::ProgressLine(std::string what, Nanoseconds quiet)
    : what_(std::move(what)), terminal_(::isatty(STDERR_FILENO) != 0), begin_(now_ns()) {
  shown_ = begin_ + quiet - (terminal_ ? 100'000'000 : 2'000'000'000);
}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', stderr);
}

void ProgressLine::show(std::uint64_t done, std::uint64_t total) {
  const Nanoseconds now = now_ns();
  const bool last = done >= total;
  if (done == 0 || (last && !open_) || (!last && now - shown_ < (terminal_ ? 100'000'000 : 2'000'000'000))) return;
  shown_ = now;
  const double left =
      static_cast<double>(now - begin_) * 1e-9 * static_cast<double>(total - done) / static_cast<double>(done);
  std::fprintf(stderr, "%s%s: %llu of %llu, %.0f s left%s", terminal_ ? "\r\033[K" : "", what_.c_str(),
               static_cast<unsigned long long>(done), static_cast<unsigned long long>(total), left,
               terminal_ && !last ? "" : "\n");
  open_ = terminal_ && !last;
}

}  // namespace ferry::engine
