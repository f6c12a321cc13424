#include "command/command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <iostream>

#include "ferry/trace/trace.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/reads.hpp"
#include "support/terminal.hpp"

namespace ferry::engine {

std::atomic<bool> stop = false;
std::atomic<int> stopped_by = 0;

namespace {

/// A command ends after its current step, unless a read hangs: nobody can wait for that. It is safe to exit here, since a file
/// that is being written has not replaced its target yet.
void end_if_reads_hang(int) {
  constexpr char text[] = "ferry: ended in the middle of a read that has brought nothing for a second\n";
  if (!stop) return;  // the signal did not end the command, as in a conversation
  if (!reads_hang(1'000'000'000)) {
    ::alarm(1);
    return;
  }
  static_cast<void>(!::write(STDERR_FILENO, text, sizeof(text) - 1));
  ::_exit(128 + stopped_by);
}

}  // namespace

void await_interrupts() {
  stop = false;
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    stopped_by = signal;
    stop = true;
    std::signal(signal, SIG_DFL);
    struct sigaction later {};
    later.sa_handler = end_if_reads_hang;
    later.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &later, nullptr);
    ::alarm(1);
  };
  // Without SA_RESTART, so that a signal also interrupts a blocking read.
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);
}
std::vector<std::string> command_line;

void warn_of_batch(const Trace& trace, std::uint32_t batch) {
  if (batch <= trace.sequences()) return;
  std::cerr << fmt::format("note: batch {}: the routing has {} sequence{}, and no step decodes more than that\n", batch,
                           trace.sequences(), trace.sequences() == 1 ? "" : "s");
}

const CLI::Validator not_nan(
    [](const std::string& s) { return std::isnan(std::strtod(s.c_str(), nullptr)) ? "expected a number" : ""; }, "");
const CLI::Validator not_empty([](const std::string& s) { return s.empty() ? "must not be empty" : ""; }, "");

const CLI::Validator a_size(
    [](const std::string& s) {
      return s.empty() ? "must not be empty"
             : s.find('%') != std::string::npos
                 ? s + ": expected a size such as 24GB; a share of all experts is --budget's"
                 : "";
    },
    "");

const CLI::Validator a_file(
    [](const std::string& s) {
      return s.empty() ? "must not be empty" : s == "-" ? "-: expected a file, since it is written piece by piece" : "";
    },
    "");

const CLI::Validator whole_number(
    [](const std::string& s) {
      std::uint64_t value = 0;
      const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
      return error == std::errc() && end == s.data() + s.size()
                 ? ""
                 : fmt::format("{}: expected a whole number from 0 to {}", s, ~std::uint64_t{0});
    },
    "");

const CLI::Validator without_spaces(
    [](std::string& s) {
      const std::size_t begin = s.find_first_not_of(' ');
      s = begin == std::string::npos ? "" : s.substr(begin, s.find_last_not_of(' ') + 1 - begin);
      return std::string();
    },
    "");

std::string stacks_help() {
  std::string text = "Stacks:\n";
  for (const StackInfo& s : all_stacks()) text += fmt::format("  {:<20}  {}\n", s.name, s.what);
  return text +
         "  a file                such a stack with parameters, of `ferry calibrate`: with a slash, or ending in "
         ".json\n";
}

void add_stack(CLI::App* c, std::string& stack) {
  add_named(c, "--stack", stack, "NAME|FILE", "policy stack, from the list below, or a file")->capture_default_str();
}

void StackFlags::add_budget(CLI::App* c) {
  add_named(c, "--budget", budget, "SHARE|BYTES",
            "device memory for experts: a share of all of them (25%) or a size (8000000, 64MiB)")
      ->capture_default_str();
}

void StackFlags::add_defaults(CLI::App* c, const char* unless_said) {
  defaults = unless_said;
  c->add_option("--defaults", defaults,
                "parameters that are not given: those calibrated for the model, where ferry has them, or the papers'")
      ->check(CLI::IsMember({"calibrated", "paper"}))
      ->capture_default_str();
}

void StackFlags::use_model(const std::string& name) {
  model_ = defaults == "calibrated" ? name : "";
  named_.clear();
}

std::string StackFlags::calibrated_note(const std::vector<std::string>& stacks) const {
  std::string text;
  for (const std::string& s : stacks) {
    const NamedStack& stack = named(s);
    if (stack.calibrated.empty()) continue;
    std::vector<std::string> values;
    const Json own = own_parameters(stack, given);
    for (const auto& [name, value] : own.items()) {
      if (!given.contains(name)) values.push_back(fmt::format("{} {}", name, json_text(value)));
    }
    if (values.empty()) continue;
    text += wrapped(fmt::format("{}: calibrated for {}: {} ({}; --defaults paper: the paper's)\n", s, model_,
                                fmt::join(values, ", "), stack.calibrated),
                    terminal_columns());
  }
  return text;
}

void StackFlags::add_parameters(CLI::App* c) {
  for (const Parameter& p : all_parameters()) add_parameter(c, p);
}

void StackFlags::add_parameter(CLI::App* c, const Parameter& p) {
  auto read = [this, &p](const std::vector<std::string>& words) { given[p.name] = p.read(words); };
  auto* option = c->add_option_function<std::vector<std::string>>(p.flag(), read,
                                                                  fmt::format("{} (default: {})", p.what, p.unset));
  option->type_name(p.range())->expected(static_cast<int>(p.size()));
  if (p.size() > 1) option->delimiter(',')->transform(without_spaces);
}

const NamedStack& StackFlags::named(const std::string& stack) const {
  const auto found = named_.find(stack);
  return found != named_.end() ? found->second : named_.emplace(stack, read_stack(stack, model_)).first->second;
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
  set_parameters(fresh, own_parameters(named(stack), given), stack + ": parameters");
  set_parameters(fresh, given, "the command line");
  o = fresh;
}

std::vector<std::string> stack_files(const std::vector<std::string>& stacks) {
  std::vector<std::string> files;
  std::copy_if(stacks.begin(), stacks.end(), std::back_inserter(files), is_stack_file);
  return files;
}

}  // namespace ferry::engine
