#include "store/block_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// A file descriptor of a regular file, opened for direct reads if possible.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // a pipe must not hang us
    fd_ = ::open(path.c_str(), flags | O_DIRECT);
    direct_ = fd_ >= 0;
    if (fd_ < 0) fd_ = ::open(path.c_str(), flags);  // not every file system has O_DIRECT
    if (fd_ < 0) throw InputError(fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
    struct stat info {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      throw InputError(fmt::format("{}: not a regular file", path.string()));
    }
    size_ = static_cast<std::uint64_t>(info.st_size);
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_), direct_(other.direct_), size_(other.size_) {
    other.fd_ = -1;
  }
  Descriptor& operator=(Descriptor&&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool direct() const { return direct_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  int fd_ = -1;
  bool direct_ = false;
  std::uint64_t size_ = 0;
};

class OpenFile : public BlockFile {
 public:
  explicit OpenFile(Descriptor file) : file_(std::move(file)) {}

  void forget(std::uint64_t at, std::uint64_t bytes) override {
    static_cast<void>(
        ::posix_fadvise(file_.fd(), static_cast<off_t>(at), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED));
  }
  [[nodiscard]] std::uint64_t size() const override { return file_.size(); }

 protected:
  Descriptor file_;
};

class PreadFile final : public OpenFile {
 public:
  using OpenFile::OpenFile;

  std::int64_t read(std::uint64_t at, std::byte* to, std::uint64_t bytes) override {
    ssize_t n = 0;
    do n = ::pread(file_.fd(), to, bytes, static_cast<off_t>(at));
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
  }
  [[nodiscard]] const char* how() const override { return file_.direct() ? "pread, direct" : "pread, cached"; }
};

/// Cuts a read into pieces, many of which are on their way at once: one alone does not fill an NVMe disk's queue.
class UringFile final : public OpenFile {
 public:
  /// Null if the kernel does not let us.
  static std::unique_ptr<UringFile> make(Descriptor& file) {
    io_uring ring{};
    if (::io_uring_queue_init(most, &ring, 0) != 0) return nullptr;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring);
    const bool reads = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0;  // Linux 5.6
    ::io_uring_free_probe(probe);
    if (reads) return std::unique_ptr<UringFile>(new UringFile(std::move(file), ring));
    ::io_uring_queue_exit(&ring);
    return nullptr;
  }
  ~UringFile() override { ::io_uring_queue_exit(&ring_); }

  std::int64_t read(std::uint64_t at, std::byte* to, std::uint64_t bytes) override {
    std::uint64_t begun = 0, whole = bytes;  // `whole`: all of the file's bytes before it have come
    std::int64_t error = broken_;
    unsigned pending = 0;
    while (pending > 0 || (begun < bytes && error == 0 && whole == bytes)) {
      while (pending < most && begun < bytes && error == 0 && whole == bytes) {
        io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
        if (entry == nullptr) break;
        ::io_uring_prep_read(entry, file_.fd(), to + begun, static_cast<unsigned>(piece_size(begun, bytes)),
                             at + begun);
        ::io_uring_sqe_set_data64(entry, begun);
        begun += piece_size(begun, bytes);
        ++pending;
      }
      const int result = broken_ == 0 ? ::io_uring_submit_and_wait(&ring_, 1) : wait();
      if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY && broken_ == 0) {
        // What the kernel has not taken it will never take; what it has taken still writes to `to`.
        pending -= ::io_uring_sq_ready(&ring_);
        error = broken_ = result;
      }
      io_uring_cqe* done = nullptr;
      while (::io_uring_peek_cqe(&ring_, &done) == 0) {
        const std::uint64_t piece = ::io_uring_cqe_get_data64(done);
        const std::int64_t n = done->res;
        ::io_uring_cqe_seen(&ring_, done);
        --pending;
        if (n < 0) error = n;
        if (n >= 0 && static_cast<std::uint64_t>(n) < piece_size(piece, bytes)) {
          whole = std::min(whole, piece + static_cast<std::uint64_t>(n));
        }
      }
    }
    return error != 0 ? error : static_cast<std::int64_t>(whole);
  }
  [[nodiscard]] const char* how() const override { return file_.direct() ? "io_uring, direct" : "io_uring, cached"; }

 private:
  static constexpr unsigned most = 32;  // on their way at once

  UringFile(Descriptor file, const io_uring& ring) : OpenFile(std::move(file)), ring_(ring) {}

  /// Of the piece that begins there, in a read of `bytes`.
  static std::uint64_t piece_size(std::uint64_t begin, std::uint64_t bytes) {
    return std::min<std::uint64_t>(256U << 10U, bytes - begin);
  }
  int wait() {
    io_uring_cqe* done = nullptr;
    return ::io_uring_wait_cqe(&ring_, &done);
  }

  io_uring ring_;
  std::int64_t broken_ = 0;  ///< -errno of a ring that can no longer be used
};

}  // namespace

std::unique_ptr<BlockFile> open_blocks(const std::filesystem::path& path, BlockIo io) {
  Descriptor file(path);
  if (io != BlockIo::pread) {
    if (auto made = UringFile::make(file)) return made;
    if (io == BlockIo::uring) throw InputError(fmt::format("{}: the kernel offers no io_uring", path.string()));
  }
  return std::make_unique<PreadFile>(std::move(file));
}

BlockMemory::BlockMemory(std::uint64_t bytes)
    : data_(static_cast<std::byte*>(::operator new (whole_blocks(bytes), std::align_val_t{block_alignment}))),
      size_(bytes) {}

void BlockMemory::Free::operator()(std::byte* p) const {
  ::operator delete (p, std::align_val_t{block_alignment});
}

}  // namespace ferry::engine
