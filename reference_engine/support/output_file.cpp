#include "support/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <set>

#include "support/errors.hpp"
#include "support/print.hpp"
#include "support/reads.hpp"

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

/// The prefix of names of temporary files for this file; 16 hexadecimal digits follow.
std::string temporary_prefix(const std::filesystem::path& path) {
  constexpr std::size_t longest = 200;  // a name has 255 bytes at most
  return "." + path.filename().string().substr(0, longest) + ".ferry-";
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// A new file that is to replace another one in the same folder. It has no name if the file system allows that, so that a
/// killed run leaves nothing behind. Otherwise its name cannot be guessed, and it is locked while it is written, so that
/// other runs can tell whether it was left behind.
class TemporaryFile {
 public:
  TemporaryFile(const std::filesystem::path& for_path, OutputFile::Names names)
      : target_(for_path), folder_(folder_of(for_path)) {
    if (names == OutputFile::Names::none) make_unnamed();
    if (fd_ < 0) make_named(-1);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    const int error = errno;
    if (!name_.empty()) ::unlink(name_.c_str());
    if (fd_ >= 0) ::close(fd_);
    errno = error;
  }

  explicit operator bool() const { return fd_ >= 0; }
  [[nodiscard]] int descriptor() const { return fd_; }

  /// Replaces the target, and syncs the folder.
  bool take_place() {
    if (name_.empty() && !make_named(fd_)) return false;
    if (::rename(name_.c_str(), target_.c_str()) != 0) return false;
    name_.clear();
    const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      ::fsync(folder);  // some file systems refuse that; the rename is done anyway
      ::close(folder);
    }
    return true;
  }

 private:
  /// The path by which an unnamed file gets a name. Without /proc, as in some containers, it cannot get one.
  static std::string as_seen_in_proc(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

  void make_unnamed() {
    fd_ = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (fd_ >= 0) ::flock(fd_, LOCK_EX | LOCK_NB);  // so that nobody takes it for left behind once it has a name
    if (fd_ < 0 || ::access(as_seen_in_proc(fd_).c_str(), F_OK) == 0) return;
    ::close(fd_);
    fd_ = -1;
  }
  /// Opens a new file with a name, or gives `unnamed` a name if that is a descriptor.
  bool make_named(int unnamed) {
    std::random_device random;
    for (int tries = 0; tries < 100; ++tries) {
      const std::filesystem::path name =
          folder_ / (temporary_prefix(target_) + fmt::format("{:08x}{:08x}", random(), random()));
      if (unnamed < 0) {
        fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd_ >= 0) ::flock(fd_, LOCK_EX | LOCK_NB);
      }
      const bool made = unnamed < 0 ? fd_ >= 0
                                    : ::linkat(AT_FDCWD, as_seen_in_proc(unnamed).c_str(), AT_FDCWD, name.c_str(),
                                               AT_SYMLINK_FOLLOW) == 0;
      if (made) name_ = name;
      if (made || errno != EEXIST) return made;
    }
    return false;
  }

  std::filesystem::path target_, folder_, name_;  ///< name_: empty without one
  int fd_ = -1;
};

/// Removes temporary files of killed runs: those that nobody has locked.
void remove_left_behind(const std::filesystem::path& path) {
  const std::string prefix = temporary_prefix(path);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(path), none)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != prefix.size() + 16 || !name.starts_with(prefix)) continue;
    if (name.find_first_not_of("0123456789abcdef", prefix.size()) != std::string::npos) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat found {};
    if (::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && ::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      ::unlink(entry.path().c_str());
    }
    ::close(fd);
  }
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
  const std::filesystem::path absolute = std::filesystem::absolute(file, none);
  if (none) {
    throw InputError(
        fmt::format("{}: cannot be written: the current folder is gone ({})", path.string(), none.message()));
  }
  const std::filesystem::path whole = std::filesystem::weakly_canonical(absolute, none);
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

void check_replaceable(const std::filesystem::path& path, const FileKind& kind) {
  constexpr std::size_t looked_at = 1U << 20U;
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none) || std::filesystem::file_size(path, none) == 0) return;
  std::string begin(looked_at, '\0');
  const ReadUnderWay watched;
  std::ifstream in(path, std::ios::binary);
  in.read(begin.data(), looked_at);
  begin.resize(static_cast<std::size_t>(in.gcount()));
  if (begin.starts_with(kind.begins) && begin.find(kind.has) != std::string::npos) return;
  throw InputError(
      fmt::format("{}: is there, and is not {}, which would replace it: name another file, or move it away",
                  path.string(), kind.name));
}

OutputFile::OutputFile(const std::filesystem::path& path, const FileKind& kind, Names names) : OutputFile(path, names) {
  if (!path_.empty()) check_replaceable(path_, kind);
}

OutputFile::OutputFile(const std::filesystem::path& path, Names names) : name_(path.string()), names_(names) {
  if (name_ == "-") {
    name_ = "standard output";
    print_to_standard_error();
    return;
  }
  path_ = file_behind(path);
  std::error_code none;
  for (const std::filesystem::path& there : {path_, path}) {  // `file_behind` of a pipe may not exist
    if (std::filesystem::exists(there, none) && !std::filesystem::is_regular_file(there, none)) {
      throw InputError(fmt::format("{}: cannot be written: it exists and is not a regular file", name_));
    }
  }
  struct statx found {};
  if (::statx(AT_FDCWD, path_.c_str(), 0, STATX_TYPE, &found) == 0 &&
      (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {  // nothing can take its place
    throw InputError(fmt::format("{}: cannot be written: it is a mount point, expected a file in a folder", name_));
  }
  struct stat there {};
  if (::lstat(path_.c_str(), &there) != 0 && errno == ENAMETOOLONG) {
    throw InputError(fmt::format("{}: cannot be written: {}: expected a name of at most 255 bytes, and a path of 4095",
                                 name_, std::strerror(ENAMETOOLONG)));
  }
  struct stat own {};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {  // these would go on writing to the replaced file
    if (::stat(path_.c_str(), &there) != 0 || ::fstat(stream, &own) != 0) continue;
    if (own.st_dev != there.st_dev || own.st_ino != there.st_ino) continue;
    throw InputError(fmt::format("{}: is where what is printed goes, expected another file, or -", name_));
  }
  remove_left_behind(path_);
  // Checks that a file can be made, and removes it at once, so that a killed run leaves nothing behind.
  if (!TemporaryFile(path_, names_))
    throw InputError(fmt::format("{}: cannot be written: {}", name_, std::strerror(errno)));
}

void OutputFile::commit(const std::vector<std::string_view>& parts) {
  if (path_.empty()) {
    if (write_all(STDOUT_FILENO, parts) || errno == EPIPE) return;  // a reader that has had enough is no error
    throw InputError(fmt::format("{}: cannot be written: {}", name_, std::strerror(errno)));
  }
  TemporaryFile file(path_, names_);
  if (file && write_all(file.descriptor(), parts) && ::fsync(file.descriptor()) == 0 && file.take_place()) return;
  throw InputError(fmt::format("{}: cannot be written: {}", name_, std::strerror(errno)));
}

}  // namespace ferry::engine
