// The ferry command.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <system_error>

#include "command/command.hpp"
#include "ferry/error.hpp"
#include "ferry/macros.hpp"
#include "support/errors.hpp"
#include "support/mapped_file.hpp"
#include "support/print.hpp"
#include "support/suggest.hpp"
#include "support/terminal.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

constexpr char no_memory[] = "out of memory (limits: ulimit -v, ulimit -d)";
constexpr char no_thread[] =
    "a thread could not be started: the system has no more, or a limit is reached (ulimit -u, "
    "ulimit -v)";

bool is_lack_of_threads(const std::system_error& e) {
  return e.code() == std::errc::resource_unavailable_try_again;
}

/// Reports an exception that nothing caught, as one thrown out of a noexcept function. As a rule, memory is lacking.
void on_lost_exception() {
  const auto end = [](const char* text, int status) {
    for (const char* part : {"ferry: ", text, "\n"})
      static_cast<void>(!::write(STDERR_FILENO, part, std::strlen(part)));
    ::_exit(status);
  };
  try {
    if (const std::exception_ptr e = std::current_exception()) std::rethrow_exception(e);
  } catch (const std::bad_alloc&) {
    end(no_memory, 2);
  } catch (const std::system_error& e) {
    end(is_lack_of_threads(e) ? no_thread : e.what(), 2);
  } catch (const std::exception& e) {
    end(e.what(), 1);
  } catch (...) {
    end("an error that nothing handles", 1);
  }
  // The standard library terminates without an exception if a noexcept function cannot allocate, as between a folder's entries.
  end("out of memory, as far as one can tell (limits: ulimit -v, ulimit -d)", 2);
}

/// Whether an allocation has ever failed. The streams in which CLI11 writes help hide that, and leave out what had no
/// room.
std::atomic<bool> memory_lacked = false;

void handle_faults() {
  std::set_terminate(on_lost_exception);
  std::set_new_handler([] {
    memory_lacked = true;
    throw std::bad_alloc();
  });
  report_lost_files();
  struct sigaction action {};
  action.sa_handler = SIG_IGN;  // write errors are handled where they happen
  for (const int s : {SIGPIPE, SIGXFSZ}) ::sigaction(s, &action, nullptr);
}

/// Refuses a stack that is too small: parsers of templates and JSON recurse, and so do the libraries' regular expressions.
void check_stack_limit() {
  constexpr rlim_t least = 2U << 20U;
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < least) {
    throw InputError(fmt::format("the stack may have {} KiB, expected {} at least: ulimit -s {}", limit.rlim_cur >> 10U,
                                 least >> 10U, least >> 10U));
  }
  // Threads get stacks of this limit, or small ones if there is no limit.
  constexpr std::size_t of_threads = 8U << 20U;
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) != 0) return;
  std::size_t bytes = 0;
  if (::pthread_attr_getstacksize(&attributes, &bytes) == 0 && bytes < of_threads) {
    ::pthread_attr_setstacksize(&attributes, of_threads);
    ::pthread_setattr_default_np(&attributes);
  }
  ::pthread_attr_destroy(&attributes);
}

/// Opens closed standard streams, so that no file gets their descriptors. A closed standard output is opened for reading only:
/// writing to it then fails, and lost output is not taken for written.
void open_closed_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) static_cast<void>(::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY));
  }
}

/// The innermost command that was named: record in `ferry trace record --x`.
const CLI::App* asked_for(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? &app : asked_for(*chosen[0]);
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

/// The command that an error message begins with. Empty for the program itself, whose name precedes every message.
std::string lead(const std::string& name) {
  return name == "ferry" ? "" : name + ": ";
}

/// A message for arguments that nothing takes, with what was probably meant.
std::string unexpected(const CLI::App& app) {
  const CLI::App& command = *asked_for(app);
  const std::vector<std::string> extra = app.remaining(true);
  const std::string name = full_name(command);
  for (const std::string& argument : extra) {
    if (!argument.starts_with("--")) continue;
    std::vector<std::string> options;
    for (const CLI::Option* o : command.get_options()) {
      for (const std::string& option : o->get_lnames()) options.push_back("--" + option);
    }
    return fmt::format("{}{} (see {} --help)", lead(name),
                       nearest_name("option", argument.substr(0, argument.find('=')), options), name);
  }
  return fmt::format(
      "{}nothing takes \"{}\": expected options, whose values with spaces stand in quotes (see {} --help)", lead(name),
      extra.empty() ? "" : printable(extra.front().substr(0, 60)), name);
}

/// A message for a command that needs a subcommand; empty if it needs none.
std::string without_command(const CLI::App& app) {
  const CLI::App& command = *asked_for(app);
  std::vector<std::string> known;
  for (const CLI::App* c : command.get_subcommands({})) known.push_back(c->get_name());
  if (known.empty()) return "";
  const std::string name = full_name(command);
  const std::vector<std::string> extra = app.remaining(true);
  if (!extra.empty() && !extra[0].starts_with('-')) return lead(name) + unknown_name("command", extra[0], known);
  return fmt::format("{}expected a command: {} (see {} --help)", lead(name), fmt::join(known, ", "), name);
}

/// Prints an error as one line, without control characters that names might bring. Returns the exit status.
int refuse(const std::string& what) {
  std::cerr << "ferry: " << InputError(what).what() << '\n';
  return 2;
}

/// Help no wider than the terminal.
class Help : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return wrapped(CLI::Formatter::make_help(app, std::move(name), mode), terminal_columns());
  }
};

/// `ferry help run` is `ferry run --help`. Whether help was asked for so.
bool help_by_name(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "help") return false;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return true;
}

/// Refuses help of what is no command.
void check_help(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    if (word.starts_with('-')) return;
    std::vector<std::string> known;
    const CLI::App* named = nullptr;
    for (const CLI::App* c : command->get_subcommands({})) {
      known.push_back(c->get_name());
      if (known.back() == word) named = c;
    }
    if (known.empty()) {
      throw InputError(
          fmt::format("help: {} has no commands of its own, so no \"{}\"", full_name(*command), printable(word)));
    }
    if (named == nullptr) throw InputError(lead(full_name(*command)) + unknown_name("command", word, known));
    command = named;
  }
}

/// Commands that are made together.
struct Commands {
  std::vector<std::string_view> names;
  void (*add)(CLI::App& app, Action& chosen);
};

/// Adds the commands among which the one is that is asked for, and all where help, a mistake or a document is about all.
/// To make all their options takes longer than many commands work.
void add_commands(CLI::App& app, Action& chosen, const std::vector<std::string>& arguments) {
  const std::vector<Commands> all = {{{"run", "compare", "inspect"}, add_run_commands},
                                     {{"trace"}, add_trace_commands},
                                     {{"simulate", "sweep", "report"}, add_simulate_commands},
                                     {{"recommend"}, add_recommend_command},
                                     {{"eval"}, add_eval_commands},
                                     {{"pack"}, add_pack_command},
                                     {{"tokenize"}, add_tokenize_command},
                                     {{"serve"}, add_serve_command},
                                     {{"chat"}, add_chat_command},
                                     {{"bench"}, add_bench_command},
                                     {{"calibrate"}, add_calibrate_commands},
                                     {{"list"}, add_list_command},
                                     {{"document"}, add_document_command}};
  const std::string first = arguments.empty() || arguments[0] == "document" ? "" : arguments[0];
  const auto has_it = [&](const Commands& c) {
    return std::find(c.names.begin(), c.names.end(), first) != c.names.end();
  };
  const bool alone = std::any_of(all.begin(), all.end(), has_it);
  for (const Commands& c : all) {
    if (!alone || has_it(c)) c.add(app, chosen);
  }
}

/// Drops leading zeros, since CLI11 reads 010 as eight.
void read_decimals(CLI::App& app) {
  for (CLI::Option* o : app.get_options()) {
    const std::string type = o->get_type_name();
    if (type != "N" && type.find("INT") == std::string::npos) continue;
    o->transform([](const std::string& s) {
      const bool whole = s.size() > 1 && s.find_first_not_of("0123456789") == std::string::npos;
      return whole ? s.substr(std::min(s.find_first_not_of('0'), s.size() - 1)) : s;
    });
  }
  for (CLI::App* command : app.get_subcommands({})) read_decimals(*command);
}

/// Whether a list has an empty entry.
bool has_gap(std::string_view list) {
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at).find_first_not_of(" \t") == std::string_view::npos) return true;
    at = end + 1;
  }
  return false;
}

/// Refuses lists with empty entries. CLI11 drops these, and if all are empty takes the next argument as the value.
void check_lists(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* command = &app;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("--")) {
      for (const CLI::App* next : command->get_subcommands({})) command = next->get_name() == argument ? next : command;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option == nullptr || option->get_delimiter() != ',') continue;
    std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    while (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {  // blanks split a list into arguments
      value += (value.empty() ? "" : " ") + arguments[++i];
    }
    if (value.empty() || !has_gap(value)) continue;
    throw InputError(fmt::format("{}: an empty entry in \"{:.100}\", expected values with a comma between two of them",
                                 name, value));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  handle_faults();
  open_closed_streams();
  check_stack_limit();
  CLI::App app("Runs Mixture-of-Experts models whose experts do not fit, and simulates such runs.", "ferry");
  app.set_version_flag("--version", "ferry " FERRY_VERSION);
  app.formatter(std::make_shared<Help>());
  app.footer("`ferry help COMMAND` says what a command takes.");
  app.require_subcommand(1);
  app.fallthrough(false);
  Action chosen;
  command_line.assign(argv, argv + argc);
  std::vector<std::string> commands, arguments(argv + std::min(argc, 1), argv + argc);
  const bool helps = help_by_name(arguments);
  add_commands(app, chosen, arguments);
  read_decimals(app);

  try {
    for (const CLI::App* c : app.get_subcommands({})) commands.push_back(c->get_name());
    if (!arguments.empty() && !arguments[0].starts_with('-') &&
        std::find(commands.begin(), commands.end(), arguments[0]) == commands.end()) {
      throw InputError(unknown_name("command", arguments[0], commands));
    }
    if (helps) check_help(app, arguments);
    check_lists(app, arguments);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(std::move(arguments));
    await_interrupts();
    const int status = chosen();
    check_printed();
    return status;
  } catch (const CLI::Success& e) {
    std::ostringstream help;
    const int status = app.exit(e, help);
    if (memory_lacked) throw std::bad_alloc();
    print(help.str());
    check_printed();
    return status;
  } catch (const CLI::RequiredError& e) {
    const std::string what = without_command(app);
    return refuse(what.empty() ? fmt::format("{} (see {} --help)", e.what(), full_name(*asked_for(app))) : what);
  } catch (const CLI::ExtrasError&) {
    return refuse(unexpected(app));
  } catch (const CLI::ConversionError& e) {  // values that no check has seen
    const std::string what = e.what(), name = what.substr(std::min(what.find("--"), what.size()));
    const CLI::Option* o = asked_for(app)->get_option_no_throw(name.substr(0, name.find(' ')));
    const bool flag = o != nullptr && o->get_expected_max() == 0;
    return refuse(fmt::format("{}: expected {} (see {} --help)", what, flag ? "no value, or true or false" : "a number",
                              full_name(*asked_for(app))));
  } catch (const CLI::ParseError& e) {
    return refuse(fmt::format("{} (see {} --help)", e.what(), full_name(*asked_for(app))));
  }
} catch (const Interrupted&) {
  fmt::print(stderr, "interrupted before there was a result\n");
  return 128 + stopped_by;
} catch (const InputError& e) {
  return refuse(e.what());
} catch (const ConfigError& e) {
  return refuse(e.what());
} catch (const std::filesystem::filesystem_error& e) {
  return refuse(e.what());
} catch (const std::system_error& e) {
  return refuse(is_lack_of_threads(e) ? no_thread : e.what());
} catch (const LinkError& e) {  // of a store, as a rule
  return refuse(e.what());
} catch (const std::bad_alloc&) {
  return refuse(no_memory);
} catch (const std::exception& e) {
  refuse(e.what());
  return 1;
}
