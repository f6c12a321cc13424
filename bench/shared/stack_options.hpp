/// @file
/// Command-line options about stacks that several programs share.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ferry::bench {

inline void add_stacks_option(CLI::App& app, std::vector<std::string>& stacks) {
  app.add_option("--stacks", stacks, "comma-separated (default: all)")->delimiter(',')->type_name("NAMES");
}

inline void add_budget_option(CLI::App& app, std::string& budget) {
  app.add_option("--budget", budget, "for the experts: a share (25%) or a size (64MiB)")->capture_default_str();
}

}  // namespace ferry::bench
