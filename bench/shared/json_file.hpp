/// @file
/// What `--json FILE` names.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "support/json.hpp"
#include "support/output_file.hpp"

namespace ferry::bench {

inline void add_json_option(CLI::App& app, std::string& path, const std::string& what = "all numbers") {
  app.add_option("--json", path, "write " + what + " to this file")->type_name("FILE");
}

/// Opened before anything is measured, so that a path that cannot be written is refused at once; written when
/// everything is known. Without a path nothing is.
class JsonFile {
 public:
  /// Throws InputError.
  explicit JsonFile(const std::string& path) {
    if (!path.empty()) file_.emplace(path);
  }
  void commit(const engine::Json& json) {
    if (file_) file_->commit(json.dump(2, ' ', false, engine::Json::error_handler_t::replace) + "\n");
  }

 private:
  std::optional<engine::OutputFile> file_;
};

}  // namespace ferry::bench
