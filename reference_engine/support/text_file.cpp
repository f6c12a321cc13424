#include "support/text_file.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/errors.hpp"

namespace ferry::engine {

namespace {

constexpr std::size_t largest = 1U << 26U;  // no context is as long

}  // namespace

bool standard_input_has_text() {
  struct stat input {};
  return ::fstat(STDIN_FILENO, &input) == 0 && (S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode));
}

std::string read_standard_input(const std::string& option, const std::atomic<bool>& stop) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::isatty(STDIN_FILENO) != 0 || ::poll(&input, 1, 1000) == 0) {
    std::fputs("reading the prompt from standard input (Ctrl-D ends it)\n", stderr);
  }
  std::string text;
  char block[65536];
  while (text.size() <= largest) {
    const ssize_t n = ::read(STDIN_FILENO, block, sizeof(block));
    if (n == 0 || stop) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(fmt::format("{} -: standard input cannot be read: {}", option, std::strerror(errno)));
    text.append(block, static_cast<std::size_t>(n));
  }
  throw InputError(fmt::format("{} -: larger than {} bytes", option, largest));
}

std::string read_text(const std::string& option, const std::string& path) {
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
