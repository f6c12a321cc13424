/// @file
/// Reads large aligned pieces of a file, past the page cache where that is possible.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace ferry::engine {

/// What places, sizes and memory of reads are multiples of.
inline constexpr std::uint64_t block_alignment = 4096;

/// A file that is read in pieces. One thread at a time.
class BlockFile {
 public:
  BlockFile() = default;
  virtual ~BlockFile() = default;
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  /// Reads `bytes` at `at` to `to`, all three multiples of block_alignment. Returns how many bytes came, fewer at the
  /// file's end or for no reason at all, or -errno.
  virtual std::int64_t read(std::uint64_t at, std::byte* to, std::uint64_t bytes) = 0;
  /// What was read there was wrong: the next read must not come from a cache.
  virtual void forget(std::uint64_t at, std::uint64_t bytes) = 0;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
  /// For reports: "io_uring, direct", "pread, cached", "pread, direct (io_uring: Operation not permitted)". From any
  /// thread.
  [[nodiscard]] virtual std::string how() const = 0;
};

enum class BlockIo { automatic, uring, pread };

/// With O_DIRECT if the file system has it, and by io_uring if the kernel lets us, as long as that works; `io` may insist
/// on one of the two to begin with.
/// Throws InputError if the file cannot be opened, is not a regular file, or the kernel has no such way.
std::unique_ptr<BlockFile> open_blocks(const std::filesystem::path& path, BlockIo io = BlockIo::automatic);

/// Memory that BlockFile can read to. Not initialised.
class BlockMemory {
 public:
  BlockMemory() = default;
  explicit BlockMemory(std::uint64_t bytes);

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t size_ = 0;
};

/// The next multiple of block_alignment.
constexpr std::uint64_t whole_blocks(std::uint64_t bytes) {
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

}  // namespace ferry::engine
