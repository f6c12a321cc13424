#include "support/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "support/errors.hpp"
#include "support/reads.hpp"

namespace ferry::engine {
namespace {

std::int64_t in_ns(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileIdentity identity_of(const struct stat& info) {
  FileIdentity i;
  i.device = static_cast<std::uint64_t>(info.st_dev);
  i.inode = static_cast<std::uint64_t>(info.st_ino);
  i.bytes = static_cast<std::uint64_t>(info.st_size);
  i.modified_ns = in_ns(info.st_mtim);
  i.changed_ns = in_ns(info.st_ctim);
  i.names = static_cast<std::uint64_t>(info.st_nlink);
  i.rights = static_cast<std::uint32_t>(info.st_mode);
  i.owner = static_cast<std::uint32_t>(info.st_uid);
  i.group = static_cast<std::uint32_t>(info.st_gid);
  return i;
}

bool is_same_file(const FileIdentity& a, const FileIdentity& b) {
  return a.device == b.device && a.inode == b.inode;
}

constexpr const char* changed = "has changed since it was opened: expected a file that stays as it is: run this again";

/// A mapped file, in a form that a signal handler may read at any time.
struct Mapping {
  std::atomic<const char*> name{nullptr};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uint64_t> size{0};
  std::atomic<int> fd{-1};
};
constexpr int most_mappings = 4096;  // losing a file beyond them is reported without its name
Mapping mappings[most_mappings];

void say(const char* text) {
  static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text)));
}

void on_lost_file(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (::isatty(STDERR_FILENO) != 0) say("\r\033[K");  // clears a progress line
  say("ferry: ");
  const char* what = "a file became shorter while it was read, or cannot be read from its disk";
  for (const Mapping& m : mappings) {
    const std::uintptr_t begin = m.begin;
    const std::uint64_t size = m.size;
    const char* name = m.name;
    if (name == nullptr || at < begin || at - begin >= size) continue;
    struct stat now {};
    const bool shorter = ::fstat(m.fd, &now) == 0 && static_cast<std::uint64_t>(now.st_size) < size;
    say(name);
    what = shorter ? ": became shorter while it was read" : ": cannot be read from its disk";
    break;
  }
  say(what);
  say(": expected a file that stays whole: put it back and run this again\n");
  ::_exit(2);
}

}  // namespace

void report_lost_files() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_file;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::filesystem::path& path, Hold hold) : name_(path.string()), shown_(printable(name_)) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hang us
  if (fd_ < 0) throw InputError(fmt::format("{}: cannot open: {}", name_, std::strerror(errno)));
  try {
    struct stat info {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      throw InputError(fmt::format("{}: not a regular file", name_));
    }
    identity_ = known_ = identity_of(info);
    if (hold == Hold::copied) {
      copy();
    } else {
      map();
    }
  } catch (...) {
    close();
    throw;
  }
}

MappedFile::~MappedFile() {
  close();
}

/// The modification time can be set back; the change time (ctime) cannot. But ctime also changes when the file gets another
/// name, other permissions or another owner, and none of that changes its contents.
bool MappedFile::is_unchanged() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) return false;
  const FileIdentity now = identity_of(info);
  const std::lock_guard lock(checks_);
  if (now == known_) return true;
  if (!is_same_file(now, known_) || now.bytes != known_.bytes || now.modified_ns != known_.modified_ns) return false;
  const bool is_elsewhere = ::stat(name_.c_str(), &info) != 0 || !is_same_file(identity_of(info), now);
  FileIdentity as_before = now;
  as_before.changed_ns = known_.changed_ns;
  if (as_before == known_ && is_elsewhere == is_elsewhere_) return false;
  known_ = now;
  is_elsewhere_ = is_elsewhere;
  return true;
}

void MappedFile::map() {
  if (size() == 0) return;
  void* at = ::mmap(nullptr, size(), PROT_READ, MAP_PRIVATE, fd_, 0);
  if (at == MAP_FAILED) {
    throw InputError(fmt::format("{}: cannot map {} bytes: {}", name_, size(), std::strerror(errno)));
  }
  data_ = static_cast<const std::byte*>(at);
  for (int i = 0; i < most_mappings; ++i) {
    const char* none = nullptr;
    if (!mappings[i].name.compare_exchange_strong(none, shown_.c_str())) continue;
    mappings[i].fd = fd_;
    mappings[i].begin = reinterpret_cast<std::uintptr_t>(at);
    mappings[i].size = size();
    slot_ = i;
    return;
  }
}

void MappedFile::copy() {
  if (size() > 0) {
    void* at = ::mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw InputError(fmt::format("{}: out of memory for its {} bytes", name_, size()));
    data_ = static_cast<const std::byte*>(at);
    read(data_, size(), static_cast<std::byte*>(at), name_);
    ::mprotect(at, size(), PROT_READ);
  } else if (!is_unchanged()) {
    throw InputError(fmt::format("{}: {}", name_, changed));
  }
  ::close(fd_);
  fd_ = -1;
}

void MappedFile::close() noexcept {
  if (slot_ >= 0) {
    mappings[slot_].size = 0;
    mappings[slot_].name = nullptr;
  }
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size());
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::read(const std::byte* from, std::uint64_t bytes, std::byte* to, const std::string& what) const {
  constexpr std::uint64_t most_at_once = 8U << 20U;  // small, so that a read that hangs is noticed
  if (fd_ < 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (auto at = from - data_; bytes > 0;) {
    const ReadUnderWay watched;
    const ssize_t n = ::pread(fd_, to, std::min(bytes, most_at_once), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw InputError(
          fmt::format("{} cannot be read: {}", what,
                      n == 0 ? "the file has become shorter: put it back and run this again" : std::strerror(errno)));
    }
    at += n;
    to += n;
    bytes -= static_cast<std::uint64_t>(n);
  }
  if (!is_unchanged()) throw InputError(fmt::format("{} cannot be used: the file {}", what, changed));
}

void MappedFile::forget(const std::byte* from, std::uint64_t bytes) const noexcept {
  if (fd_ < 0) return;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::uint64_t>(from - data_), first = (begin + page - 1) / page * page;
  const std::uint64_t end = (begin + bytes) / page * page;  // pages shared with neighbours stay
  if (end > first) static_cast<void>(::madvise(const_cast<std::byte*>(data_) + first, end - first, MADV_DONTNEED));
}

void MappedFile::check_unchanged() const {
  if (fd_ < 0) return;
  if (!is_unchanged()) throw InputError(fmt::format("{}: {}", name_, changed));
  struct stat info {};
  // A removed file stays whole while it is open. If it was replaced, files beside it may be new, too, and not match.
  if (::stat(name_.c_str(), &info) == 0 && !is_same_file(identity_of(info), identity_)) {
    throw InputError(fmt::format("{}: was replaced by another file while it was used: run this again", name_));
  }
}

}  // namespace ferry::engine
