#include "support/bundled_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "support/errors.hpp"
#include "support/suggest.hpp"

namespace ferry::engine {
namespace {

/// A folder's entries in any order; none if the folder does not exist.
std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) all.push_back(entry.path());
  if (error && error != std::errc::no_such_file_or_directory) {
    throw InputError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  }
  return all;
}

}  // namespace

std::filesystem::path data_directory() {
  std::error_code none;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto installed = self.parent_path().parent_path() / "share" / "ferry";
  return std::filesystem::exists(installed / "machines", none) ? installed : std::filesystem::path(FERRY_DATA_DIR);
}

std::vector<std::string> data_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::filesystem::path& path : entries(data_directory() / folder)) {
    if (path.extension() == ".json") names.push_back(path.stem().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) throw InputError((data_directory() / folder).string() + ": no files are there");
  return names;
}

std::filesystem::path data_file(const std::string& folder, const std::string& kind, const std::string& name_or_path) {
  const std::filesystem::path path = name_or_path;
  if (name_or_path.find('/') != std::string::npos || path.extension() == ".json") return path;
  const auto names = data_names(folder);
  if (std::find(names.begin(), names.end(), name_or_path) == names.end()) {
    refuse_file_as_name(kind, name_or_path);
    throw InputError(unknown_name(kind, name_or_path, names));
  }
  return data_directory() / folder / (name_or_path + ".json");
}

std::filesystem::path bundled_text() {
  return data_directory() / "texts" / "mixed.txt";
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const std::filesystem::path& folder : entries(data_directory() / "models")) {
    if (std::filesystem::exists(folder / "config.json", none)) names.push_back(folder.filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path models_folder() {
  const char* folder = std::getenv("FERRY_MODELS");
  if (folder == nullptr || *folder == '\0') return "";
  std::error_code none;
  if (std::filesystem::is_directory(folder, none)) return folder;
  throw InputError(fmt::format("FERRY_MODELS: {}: no such folder", folder));
}

std::vector<std::string> own_model_names() {
  std::vector<std::string> names;
  std::error_code none;
  const std::filesystem::path all = models_folder();
  if (all.empty()) return names;
  std::filesystem::recursive_directory_iterator it(all, none);
  for (; !none && it != std::filesystem::recursive_directory_iterator(); it.increment(none)) {
    const std::filesystem::path& path = it->path();
    const bool is_model = std::filesystem::exists(path / "config.json", none);
    if (is_model || path.extension() == ".gguf") names.push_back(path.lexically_relative(all).string());
    if (is_model || it.depth() == 1) it.disable_recursion_pending();
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path find_model(const std::string& name) {
  std::error_code none;
  const auto bundled = data_directory() / "models" / name;
  const bool is_bundled = name.find('/') == std::string::npos && std::filesystem::is_directory(bundled, none);
  // A user's folder of the same name without a config.json, perhaps for results, does not hide a bundled model.
  if (is_bundled && !std::filesystem::exists(std::filesystem::path(name) / "config.json", none)) return bundled;
  const auto is_there = [&](const std::filesystem::path& path) {
    return std::filesystem::is_directory(path, none) || std::filesystem::is_regular_file(path, none);
  };
  if (is_there(name)) return name;
  const std::filesystem::path own = models_folder();
  if (own.empty()) {
    throw InputError(
        fmt::format("--model {}: no such folder or file; bundled models are {}; FERRY_MODELS can name a folder with "
                    "others",
                    name, fmt::join(model_names(), " and ")));
  }
  for (const std::filesystem::path& path : {own / name, own / (name + ".gguf")}) {
    if (is_there(path)) return path;
  }
  std::vector<std::string> known = own_model_names();
  for (const std::string& bundled_name : model_names()) known.push_back(bundled_name);
  throw InputError(fmt::format("--model {}: no such folder or file, and nothing in FERRY_MODELS ({}): {}", name,
                               own.string(), nearest_name("model", name, known)));
}

std::string model_name(const std::string& model) {
  const std::filesystem::path path = model;
  const std::string name = path.filename().string();
  return name.empty() ? path.parent_path().filename().string() : name;
}

}  // namespace ferry::engine
