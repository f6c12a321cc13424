/// @file
/// What the benchmarks' main functions share.
#pragma once
#include <CLI/CLI.hpp>
#include <iostream>

#include "ferry/error.hpp"
#include "support/errors.hpp"

namespace ferry::bench {

/// Parses, then runs. A mistake gets one line and exit status 2, a failure 1.
template <class Run>
int parse_and_run(CLI::App& app, int argc, char** argv, const Run& run) {
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << app.get_name() << ": " << e.what() << " (see --help)\n";
  } catch (const engine::InputError& e) {
    std::cerr << app.get_name() << ": " << e.what() << '\n';
  } catch (const ConfigError& e) {
    std::cerr << app.get_name() << ": " << engine::InputError(e.what()).what() << '\n';
  } catch (const std::exception& e) {
    std::cerr << app.get_name() << ": " << e.what() << '\n';
    return 1;
  }
  return 2;
}

}  // namespace ferry::bench
