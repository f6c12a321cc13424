#include "support/text_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "support/errors.hpp"
#include "support/reads.hpp"

namespace ferry::engine {

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
  while (text.size() <= largest_text) {
    const ssize_t n = ::read(STDIN_FILENO, block, sizeof(block));
    if (n == 0 || stop) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(fmt::format("{} -: standard input cannot be read: {}", option, std::strerror(errno)));
    text.append(block, static_cast<std::size_t>(n));
  }
  throw InputError(fmt::format("{} -: larger than {} bytes", option, largest_text));
}

bool is_there(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::symlink_status(path, none).type() != std::filesystem::file_type::not_found;
}

std::string read_whole(const std::filesystem::path& path, std::uint64_t most_bytes) {
  const auto refuse = [&](int error) {
    throw InputError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(error)));
  };
  std::error_code none;
  if (std::filesystem::is_fifo(path, none)) {  // reading it might never end
    throw InputError(path.string() + ": is a pipe, expected a file; where - may be given, it is standard input");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(errno);
  std::string text;
  int error = 0;
  try {
    char block[65536];
    for (ssize_t n = 1; n != 0 && error == 0;) {
      const ReadUnderWay watched;
      n = ::read(fd, block, sizeof(block));
      if (n < 0 && errno != EINTR) error = errno;
      if (n > 0) text.append(block, static_cast<std::size_t>(n));
      if (text.size() > most_bytes) error = EFBIG;
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  if (error != 0) refuse(error);
  return text;
}

std::string read_text(const std::string& option, const std::string& path) {
  try {
    return read_whole(path);
  } catch (const InputError& e) {
    throw InputError(fmt::format("{} {}", option, e.what()));
  }
}

}  // namespace ferry::engine
