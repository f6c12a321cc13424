/// @file
/// What the subcommands of `ferry` share.
#pragma once
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ferry/fwd.hpp"
#include "stacks/budget.hpp"
#include "stacks/parameters.hpp"
#include "stacks/stack_file.hpp"
#include "support/json.hpp"
#include "support/output_file.hpp"

namespace ferry::engine {

/// Set by a signal: end after the current step. And which one it was.
extern std::atomic<bool> stop;
extern std::atomic<int> stopped_by;

/// From now on the first signal that asks for an end sets `stop`, and a second one ends at once. So does a read that
/// brings nothing for a second after the first.
void await_interrupts();

/// What the user typed, for reports.
extern std::vector<std::string> command_line;

/// A command was stopped before it had anything to say.
struct Interrupted {};

/// What `ferry` is to do, once its arguments are parsed; returns the exit status.
using Action = std::function<int()>;

/// Each adds its subcommands; parsing sets `chosen`.
void add_run_commands(CLI::App& app, Action& chosen);
void add_trace_commands(CLI::App& app, Action& chosen);
void add_simulate_commands(CLI::App& app, Action& chosen);
void add_recommend_command(CLI::App& app, Action& chosen);
void add_eval_commands(CLI::App& app, Action& chosen);
void add_pack_command(CLI::App& app, Action& chosen);
void add_tokenize_command(CLI::App& app, Action& chosen);
void add_serve_command(CLI::App& app, Action& chosen);
void add_chat_command(CLI::App& app, Action& chosen);
void add_bench_command(CLI::App& app, Action& chosen);
void add_calibrate_commands(CLI::App& app, Action& chosen);
void add_list_command(CLI::App& app, Action& chosen);
void add_document_command(CLI::App& app, Action& chosen);

/// What commands write, and replace.
inline constexpr FileKind report_json = {"JSON that ferry reports in", "", "\"command_line\""};
inline constexpr FileKind timeline_json = {"a timeline", "{", "\"traceEvents\""};
inline constexpr FileKind machine_json = {"a machine file", "{", "\"effective_bytes_per_s\""};

/// For whole numbers in a range. CLI11's own says of whatever is no number that it is not in the range.
template <class Bound>
CLI::Validator in_range(Bound least, Bound most) {
  CLI::Validator range = CLI::Range(least, most);  // for its text in help
  range.operation([least, most](const std::string& text) {
    Bound value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size();
    return number && value >= least && value <= most
               ? std::string()
               : fmt::format("expected a whole number from {} to {}, got \"{}\"", least, most, text);
  });
  return range;
}

/// For options that name something.
extern const CLI::Validator not_empty;
/// An option that names something, as a FILE is named: whatever it is, it is not empty.
template <class Value>
CLI::Option* add_named(CLI::App* command, const std::string& option, Value& value, const char* what,
                       const std::string& help) {
  return command->add_option(option, value, help)->type_name(what)->check(not_empty);
}
/// An option that counts, from `least` to `most`; help shows its default.
template <class Value, class Bound>
CLI::Option* add_count(CLI::App* command, const std::string& option, Value& value, Bound least, Bound most,
                       const std::string& help) {
  return command->add_option(option, value, help)->type_name("N")->check(in_range(least, most))->capture_default_str();
}
/// A size, and not a share of what is not known yet.
extern const CLI::Validator a_size;
/// Refuses NaN, which CLI11 takes to be within every range, since it is not outside.
extern const CLI::Validator not_nan;
inline constexpr const char* prefetch_chunk_help =
    "cut prefetches into pieces, a share of an expert or a size, between which what the gate asks for goes ahead; 0: a "
    "prefetch that has begun is not held up";
/// For outputs that are written piece by piece, which standard output cannot be.
extern const CLI::Validator a_file;
/// For whole numbers up to 2^64 - 1, which CLI11 does not check for size.
extern const CLI::Validator whole_number;
/// Ignores spaces around a list's elements, which commas separate.
extern const CLI::Validator without_spaces;

/// "8", or "4 to 8" where layers differ.
template <class Number>
std::string range_of(const std::vector<Number>& all) {
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  return *least == *most ? fmt::format("{}", *most) : fmt::format("{} to {}", *least, *most);
}

/// Says if a trace has fewer sequences than are to be decoded together.
void warn_of_batch(const Trace& trace, std::uint32_t batch);

/// The stacks with a line each, for help.
std::string stacks_help();
/// --stack, for commands whose help ends with that list.
void add_stack(CLI::App* command, std::string& stack);

/// Options about stacks that several commands have. A stack is a policy stack's name or a stack file; what the command
/// line says wins over the file.
struct StackFlags {
  std::string budget = "25%";
  Json given = Json::object();  ///< the parameters that the command line has
  std::string defaults;

  void add_budget(CLI::App* command);
  /// Whether parameters that nobody gives are those calibrated for the model, for commands that call `use_model`;
  /// `unless_said`: "calibrated" or "paper".
  void add_defaults(CLI::App* command, const char* unless_said = "calibrated");
  /// From now on stacks have the parameters that were calibrated for this model and come with ferry, if they are wanted.
  void use_model(const std::string& name);
  /// A line for each stack with such parameters, which says which they are, and how to go without.
  [[nodiscard]] std::string calibrated_note(const std::vector<std::string>& stacks) const;
  void add_parameters(CLI::App* command);
  /// One of them. What the command line says is written here while it is parsed: this object must stay where it is.
  void add_parameter(CLI::App* command, const Parameter& parameter);
  /// Refuses unknown stacks, files that are no stack files, parameters that none of them has or that do not fit each
  /// other, and two stacks that would be called alike in reports.
  void check(const std::vector<std::string>& stacks) const;
  /// The options of one stack, all but its memory and rows.
  void set(StackOptions& options, const std::string& stack) const;
  /// The parameters that the stack was given, for reports.
  [[nodiscard]] Json taken_by(const std::string& stack) const;
  /// Read once, when it is first named. Throws InputError.
  [[nodiscard]] const NamedStack& named(const std::string& stack) const;
  /// Whether it takes a parameter, with the pools that it is given.
  [[nodiscard]] bool takes(const std::string& stack, const ParameterMember& parameter) const;

 private:
  std::string model_;  ///< whose calibrated parameters are the defaults; empty: no model's
  mutable std::map<std::string, NamedStack> named_;
};

/// Those of the names that are files.
std::vector<std::string> stack_files(const std::vector<std::string>& stacks);

}  // namespace ferry::engine
