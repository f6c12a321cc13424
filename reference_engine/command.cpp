#include "command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "errors.hpp"
#include "machine.hpp"

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
  return text;
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
                "layers whole")
      ->check(CLI::IsMember({"stack", "per-layer", "one", "shallow"}))
      ->capture_default_str();
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

std::vector<std::string> StackFlags::given() const {
  std::vector<std::string> names;
  auto add = [&](bool has, const char* name) {
    if (has) names.emplace_back(name);
  };
  add(t1.has_value(), "--t1");
  add(t2.has_value(), "--t2");
  add(alpha.has_value(), "--alpha");
  add(low_share.has_value(), "--low-share");
  add(shallow_layers.has_value(), "--shallow-layers");
  add(percentile.has_value(), "--percentile");
  add(depth.has_value(), "--depth");
  return names;
}

void StackFlags::check(const std::vector<std::string>& names) const {
  for (const std::string& p : given()) {
    bool taken = false;
    for (const std::string& name : names) {
      const std::vector<std::string>& takes = find_stack(name).parameters;
      taken = taken || std::find(takes.begin(), takes.end(), p) != takes.end() ||
              (p == "--shallow-layers" && pools == "shallow");
    }
    if (taken) continue;
    std::vector<std::string> those;
    for (const StackInfo& s : all_stacks()) {
      if (std::find(s.parameters.begin(), s.parameters.end(), p) != s.parameters.end()) those.push_back(s.name);
    }
    throw InputError(fmt::format("{}: {} has no such parameter; stacks that do: {}", p, fmt::join(names, ", "),
                                 fmt::join(those, ", ")));
  }
  for (const std::string& name : names) static_cast<void>(find_stack(name));
}

void StackFlags::set(StackOptions& o, const std::string& stack) const {
  o.stack = stack;
  o.pools = pool_choice(pools);
  o.t1 = t1;
  o.t2 = t2;
  o.alpha = alpha;
  o.low_share_percent = low_share;
  o.shallow_layers = shallow_layers;
  o.percentile = percentile;
  o.depth = depth;
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
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!outputs[i].empty() && outputs[i] == outputs[j]) {
        throw InputError(fmt::format("{}: named for two outputs, expected two files", outputs[i]));
      }
    }
    for (const std::string& in : inputs) {
      std::error_code none;
      if (!outputs[i].empty() && !in.empty() && std::filesystem::equivalent(in, outputs[i], none)) {
        throw InputError(fmt::format("{}: is read by this run, so it cannot be written by it", outputs[i]));
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
