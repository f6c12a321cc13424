#include "store/block_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "support/errors.hpp"
#include "support/reads.hpp"

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

/// Pauses between retries after a temporary error, each longer than the last, up to a limit.
class Patience {
 public:
  /// Pauses. False: there were enough tries.
  bool pause() {
    constexpr int most = 6;  // 63 ms in all
    if (tries_ == most) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1 << tries_++));
    return true;
  }

 private:
  int tries_ = 0;
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
  std::int64_t read_by_pread(std::uint64_t at, std::byte* to, std::uint64_t bytes) const {
    for (Patience patience;;) {
      const ssize_t n = ::pread(file_.fd(), to, std::min(bytes, most_at_once), static_cast<off_t>(at));
      if (n >= 0) return n;
      if (errno != EINTR && (errno != EAGAIN || !patience.pause())) return -errno;
    }
  }
  /// How files are read, for reports. `no_ring`: the errno for which io_uring is not used, or 0.
  [[nodiscard]] std::string way(const char* call, int no_ring) const {
    const std::string text = fmt::format("{}, {}", call, file_.direct() ? "direct" : "cached");
    return no_ring == 0 ? text : fmt::format("{} (io_uring: {})", text, std::strerror(no_ring));
  }

  Descriptor file_;

 private:
  static constexpr std::uint64_t most_at_once = 8U << 20U;  // small, so that a read that hangs is noticed
};

class PreadFile final : public OpenFile {
 public:
  PreadFile(Descriptor file, int no_ring) : OpenFile(std::move(file)), no_ring_(no_ring) {}

  std::int64_t read(std::uint64_t at, std::byte* to, std::uint64_t bytes) override {
    const ReadUnderWay watched;
    return read_by_pread(at, to, bytes);
  }
  [[nodiscard]] std::string how() const override { return way("pread", no_ring_); }

 private:
  int no_ring_;
};

/// Cuts a read into pieces and has many of them in flight, since a single one does not fill an NVMe disk's queue. What the
/// ring does not deliver is read by pread; a ring that fails is not used again.
class UringFile final : public OpenFile {
 public:
  /// Null if the kernel offers no io_uring; `error` is then the errno.
  static std::unique_ptr<UringFile> make(Descriptor& file, int& error) {
    io_uring ring{};
    error = -::io_uring_queue_init(most, &ring, 0);
    if (error != 0) return nullptr;
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring);
    const bool reads = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0;  // Linux 5.6
    ::io_uring_free_probe(probe);
    if (reads) return std::unique_ptr<UringFile>(new UringFile(std::move(file), ring));
    ::io_uring_queue_exit(&ring);
    error = EOPNOTSUPP;
    return nullptr;
  }
  ~UringFile() override { ::io_uring_queue_exit(&ring_); }

  std::int64_t read(std::uint64_t at, std::byte* to, std::uint64_t bytes) override {
    const ReadUnderWay watched;
    for (Patience patience; failed_ == 0;) {
      const std::int64_t n = read_by_ring(at, to, bytes);
      if (n >= 0) return n;
      if (n != -EAGAIN) break;
      if (!patience.pause()) failed_ = EAGAIN;
    }
    return read_by_pread(at, to, bytes);
  }
  [[nodiscard]] std::string how() const override {
    const int failed = failed_;
    return way(failed == 0 ? "io_uring" : "pread", failed);
  }

 private:
  static constexpr unsigned most = 32;  // pieces in flight

  UringFile(Descriptor file, const io_uring& ring) : OpenFile(std::move(file)), ring_(ring) {}

  /// Size of the piece that begins there, in a read of `bytes`.
  static std::uint64_t piece_size(std::uint64_t begin, std::uint64_t bytes) {
    return std::min<std::uint64_t>(256U << 10U, bytes - begin);
  }

  /// As `read`; an error only if no byte came before it.
  std::int64_t read_by_ring(std::uint64_t at, std::byte* to, std::uint64_t bytes) {
    std::uint64_t begun = 0, whole = bytes;  // `whole`: up to here no piece has failed or come up short
    std::int64_t error = 0;                  // of the first piece that failed
    unsigned pending = 0;
    Patience patience;
    while (pending > 0 || (begun < bytes && whole == bytes && failed_ == 0)) {
      while (pending < most && begun < bytes && whole == bytes && failed_ == 0) {
        io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
        if (entry == nullptr) break;
        ::io_uring_prep_read(entry, file_.fd(), to + begun, static_cast<unsigned>(piece_size(begun, bytes)),
                             at + begun);
        ::io_uring_sqe_set_data64(entry, begun);
        begun += piece_size(begun, bytes);
        ++pending;
      }
      if (failed_ == 0) {
        const int result = ::io_uring_submit_and_wait(&ring_, 1);
        const bool for_now = result == -EAGAIN || result == -EBUSY;
        if (result < 0 && result != -EINTR && !(for_now && patience.pause())) {
          // The kernel will not take the pieces that it has not taken yet, but those that it has may still write to `to`.
          pending -= ::io_uring_sq_ready(&ring_);
          failed_ = -result;
        }
      } else {
        // Waiting in the kernel has failed, but completions can still be polled.
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      io_uring_cqe* done = nullptr;
      while (::io_uring_peek_cqe(&ring_, &done) == 0) {
        const std::uint64_t piece = ::io_uring_cqe_get_data64(done);
        const std::int64_t n = done->res;
        ::io_uring_cqe_seen(&ring_, done);
        --pending;
        ReadUnderWay::came();
        const std::uint64_t came = piece + static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0));
        if (came >= piece + piece_size(piece, bytes) || came >= whole) continue;
        whole = came;
        error = n == -EINTR ? -EAGAIN : std::min<std::int64_t>(n, 0);
      }
    }
    if (failed_ != 0) return -failed_;  // pieces may be missing anywhere
    return whole == 0 && error != 0 ? error : static_cast<std::int64_t>(whole);
  }

  io_uring ring_;
  std::atomic<int> failed_ = 0;  ///< errno of a ring that can no longer be used
};

}  // namespace

std::unique_ptr<BlockFile> open_blocks(const std::filesystem::path& path, BlockIo io) {
  Descriptor file(path);
  int no_ring = 0;
  if (io != BlockIo::pread) {
    if (auto made = UringFile::make(file, no_ring)) return made;
    if (io == BlockIo::uring) {
      throw InputError(fmt::format("{}: the kernel offers no io_uring: {}", path.string(), std::strerror(no_ring)));
    }
  }
  return std::make_unique<PreadFile>(std::move(file), no_ring);
}

BlockMemory::BlockMemory(std::uint64_t bytes)
    : data_(static_cast<std::byte*>(::operator new (whole_blocks(bytes), std::align_val_t{block_alignment}))),
      size_(bytes) {}

void BlockMemory::Free::operator()(std::byte* p) const {
  ::operator delete (p, std::align_val_t{block_alignment});
}

}  // namespace ferry::engine
