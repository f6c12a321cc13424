#include "command/command.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"

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
  for (const Parameter& p : all_parameters()) add_parameter(c, p);
}

void StackFlags::add_parameter(CLI::App* c, const Parameter& p) {
  auto read = [this, &p](const std::vector<std::string>& words) { given[p.name] = p.read(words); };
  auto* option = c->add_option_function<std::vector<std::string>>(p.flag(), read,
                                                                  fmt::format("{} (default: {})", p.what, p.unset));
  option->type_name(p.range())->expected(static_cast<int>(p.size()));
  if (p.size() > 1) option->delimiter(',');
}

const NamedStack& StackFlags::named(const std::string& stack) const {
  const auto found = named_.find(stack);
  return found != named_.end() ? found->second : named_.emplace(stack, read_stack(stack)).first->second;
}

bool StackFlags::takes(const std::string& stack, const ParameterMember& parameter) const {
  StackOptions o;
  set(o, stack);
  return takes_parameter(o.stack, parameter, o.pools);
}

Json StackFlags::taken_by(const std::string& stack) const {
  return parameters_of(named(stack), given);
}

void StackFlags::check(const std::vector<std::string>& names) const {
  std::vector<NamedStack> stacks;
  std::vector<std::string> policies;
  for (const std::string& name : names) {
    stacks.push_back(named(name));
    policies.push_back(stacks.back().policies);
  }
  check_labels(stacks);
  for (const auto& flag : given.items()) {
    const Parameter& p = find_parameter(flag.key(), "the command line");
    auto takes_it = [&](const std::string& stack) { return takes(stack, p.member()); };
    if (std::any_of(names.begin(), names.end(), takes_it)) continue;
    std::vector<std::string> those;
    for (const StackInfo& s : all_stacks()) {
      if (takes_it(s.name)) those.push_back(s.name);
    }
    throw InputError(fmt::format("{}: {} has no such parameter; stacks that do{}: {}", p.flag(),
                                 fmt::join(policies, ", "), those.empty() ? " with these pools" : "",
                                 those.empty() ? "none" : fmt::format("{}", fmt::join(those, ", "))));
  }
  for (const std::string& name : names) {
    StackOptions o;
    set(o, name);
    check_parameters(o);
  }
}

void StackFlags::set(StackOptions& o, const std::string& stack) const {
  StackOptions fresh;
  fresh.budget_bytes = o.budget_bytes;
  fresh.max_rows = o.max_rows;
  fresh.stack = named(stack).policies;
  set_parameters(fresh, named(stack).parameters, stack + ": parameters");
  set_parameters(fresh, given, "the command line");
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
