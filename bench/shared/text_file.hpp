/// @file
/// Texts that models read.
#pragma once
#include <string>

#include "support/errors.hpp"
#include "support/text_file.hpp"

namespace ferry::bench {

/// All of a file. Throws InputError if it cannot be read, or is empty.
inline std::string read_text(const std::string& path) {
  std::string text = engine::read_text("--text", path);
  if (text.empty()) throw engine::InputError("--text " + path + ": is empty");
  return text;
}

}  // namespace ferry::bench
