#include "support/text_file.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <fstream>

#include "support/errors.hpp"

namespace ferry::engine {

std::string read_text(const std::string& option, const std::string& path) {
  constexpr std::size_t largest = 1U << 26U;  // no context is as long
  std::string text;
  std::error_code none;
  std::ifstream in(path, std::ios::binary);
  bool good = in && !std::filesystem::is_directory(path, none) && !std::filesystem::is_fifo(path, none);
  char block[65536];
  while (good && text.size() <= largest) {
    in.read(block, sizeof(block));
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (in.eof()) return text;
    good = in.good();
  }
  throw InputError(good ? fmt::format("{} {}: larger than {} bytes", option, path, largest)
                        : fmt::format("{} {}: cannot be read", option, path));
}

}  // namespace ferry::engine
