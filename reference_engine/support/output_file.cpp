#include "support/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "support/errors.hpp"
#include "support/print.hpp"

namespace ferry::engine {
namespace {

bool write_all(int fd, const std::vector<std::string_view>& parts) {
  for (std::string_view rest : parts) {
    while (!rest.empty()) {
      const ssize_t n = ::write(fd, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  return true;
}

}  // namespace

std::filesystem::path file_behind(const std::filesystem::path& path) {
  constexpr int most_links = 40;  // Linux's own limit
  std::error_code none;
  std::filesystem::path file = path;
  for (int links = 0; std::filesystem::is_symlink(file, none); ++links) {
    if (links == most_links) {
      throw InputError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(ELOOP)));
    }
    file = file.parent_path() / std::filesystem::read_symlink(file, none);
  }
  const std::filesystem::path whole = std::filesystem::weakly_canonical(std::filesystem::absolute(file), none);
  return none ? file : whole;
}

void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  std::set<std::filesystem::path> files;
  for (const std::string& out : outputs) {
    if (out.empty()) continue;
    if (out == "-") {
      if (files.insert(out).second) continue;
      throw InputError("-: named for two outputs, expected two files");
    }
    if (!files.insert(file_behind(out)).second) {
      throw InputError(fmt::format("{}: named for two outputs, expected two files", out));
    }
    for (const std::string& in : inputs) {
      std::error_code none;
      if (!in.empty() && std::filesystem::equivalent(in, out, none)) {
        throw InputError(fmt::format("{}: is read by this run, so it cannot be written by it", out));
      }
    }
  }
}

OutputFile::OutputFile(const std::filesystem::path& path) : name_(path.string()) {
  if (name_ == "-") {
    name_ = "standard output";
    print_to_standard_error();
    return;
  }
  path_ = file_behind(path);
  std::error_code none;
  temporary_ = path_.string() + fmt::format(".{}.tmp", ::getpid());
  if (std::filesystem::exists(path_, none) && !std::filesystem::is_regular_file(path_, none)) {
    throw InputError(fmt::format("{}: cannot be written: it exists and is not a regular file", name_));
  }
  // Tried now and removed at once: a run that is killed leaves nothing behind.
  const int fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw InputError(fmt::format("{}: cannot be written: {}", name_, std::strerror(errno)));
  ::close(fd);
  ::unlink(temporary_.c_str());
}

void OutputFile::commit(const std::vector<std::string_view>& parts) {
  if (path_.empty()) {
    if (write_all(STDOUT_FILENO, parts) || errno == EPIPE) return;  // a reader that has had enough is no error
    throw InputError(fmt::format("{}: cannot be written: {}", name_, std::strerror(errno)));
  }
  const int fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  const bool good =
      fd >= 0 && write_all(fd, parts) && ::fsync(fd) == 0 && ::rename(temporary_.c_str(), path_.c_str()) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (good) return;
  ::unlink(temporary_.c_str());
  throw InputError(fmt::format("{}: cannot be written: {}", name_, std::strerror(error)));
}

}  // namespace ferry::engine
