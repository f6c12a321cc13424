/// @file
/// Texts that models read.
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/errors.hpp"

namespace ferry::bench {

/// All of a file. Throws InputError if it cannot be read, or is empty.
inline std::string read_text(const std::string& path) {
  std::error_code none;
  std::ifstream in(path, std::ios::binary);
  std::string text;
  if (!std::filesystem::is_directory(path, none)) text.assign(std::istreambuf_iterator<char>(in), {});
  if (text.empty()) throw engine::InputError("--text " + path + ": cannot be read, or is empty");
  return text;
}

}  // namespace ferry::bench
