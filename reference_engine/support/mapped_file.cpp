#include "support/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "support/errors.hpp"
#include "support/reads.hpp"

namespace ferry::engine {

MappedFile::MappedFile(const std::filesystem::path& path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hang us
  if (fd_ < 0) throw InputError(fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw InputError(fmt::format("{}: not a regular file", path.string()));
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
  if (size_ == 0) return;
  void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    ::close(fd_);
    throw InputError(fmt::format("{}: cannot map {} bytes: {}", path.string(), size_, std::strerror(error)));
  }
  data_ = static_cast<const std::byte*>(at);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(fd_);
}

void MappedFile::read(const std::byte* from, std::uint64_t bytes, std::byte* to, const std::string& what) const {
  constexpr std::uint64_t most_at_once = 8U << 20U;  // so that one can see whether anything comes
  for (auto at = from - data_; bytes > 0;) {
    const ReadUnderWay watched;
    const ssize_t n = ::pread(fd_, to, std::min(bytes, most_at_once), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw InputError(
          fmt::format("{} cannot be read: {}", what, n == 0 ? "the file has become shorter" : std::strerror(errno)));
    }
    at += n;
    to += n;
    bytes -= static_cast<std::uint64_t>(n);
  }
}

void MappedFile::forget(const std::byte* from, std::uint64_t bytes) const noexcept {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<std::uint64_t>(from - data_), first = (begin + page - 1) / page * page;
  const std::uint64_t end = (begin + bytes) / page * page;  // its neighbours keep theirs
  if (end > first) static_cast<void>(::madvise(const_cast<std::byte*>(data_) + first, end - first, MADV_DONTNEED));
}

}  // namespace ferry::engine
