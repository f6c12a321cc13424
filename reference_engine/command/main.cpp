// The ferry command.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "command/command.hpp"
#include "ferry/error.hpp"
#include "ferry/macros.hpp"
#include "support/errors.hpp"
#include "support/suggest.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

void on_interrupt(int signal) {
  stopped_by = signal;
  stop = true;
  std::signal(signal, SIG_DFL);  // a second one ends at once
}

/// Without SA_RESTART: a read that blocks is interrupted, too.
void handle_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);
  action.sa_handler = SIG_IGN;  // write errors are handled where they happen
  for (const int s : {SIGPIPE, SIGXFSZ}) ::sigaction(s, &action, nullptr);
}

/// A closed standard stream must not become the number of a file that we write.
void open_closed_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) static_cast<void>(::open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY));
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  CLI::App app("Runs Mixture-of-Experts models whose experts do not fit, and simulates such runs.", "ferry");
  app.set_version_flag("--version", "ferry " FERRY_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  Action chosen;
  add_run_commands(app, chosen);
  add_trace_commands(app, chosen);
  add_simulate_commands(app, chosen);
  add_eval_commands(app, chosen);
  add_pack_command(app, chosen);
  add_calibrate_commands(app, chosen);

  try {
    std::vector<std::string> commands;
    for (const CLI::App* c : app.get_subcommands({})) commands.push_back(c->get_name());
    if (argc > 1 && argv[1][0] != '-' && std::find(commands.begin(), commands.end(), argv[1]) == commands.end()) {
      throw InputError(unknown_name("command", argv[1], commands));
    }
    app.parse(argc, argv);
    handle_signals();
    return chosen();
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << "ferry: " << e.what() << " (see ferry --help)\n";
  } catch (const Interrupted&) {
    return 128 + stopped_by;
  } catch (const InputError& e) {
    std::cerr << "ferry: " << e.what() << '\n';
  } catch (const ConfigError& e) {
    std::cerr << "ferry: " << InputError(e.what()).what() << '\n';
  } catch (const std::filesystem::filesystem_error& e) {
    std::cerr << "ferry: " << InputError(e.what()).what() << '\n';
  } catch (const LinkError& e) {  // of a store, as a rule
    std::cerr << "ferry: " << InputError(e.what()).what() << '\n';
  } catch (const std::bad_alloc&) {
    std::cerr << "ferry: out of memory\n";
  } catch (const std::exception& e) {
    std::cerr << "ferry: " << e.what() << '\n';
    return 1;
  }
  return 2;
}
