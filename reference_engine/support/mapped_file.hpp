/// @file
/// Files mapped into memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace ferry::engine {

/// A file mapped read-only. Throws InputError if it cannot be opened.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Copies what is mapped at `from`, but reads it: a disk that fails is an error here and a signal there, and what is
  /// read this way need not stay in memory. Throws InputError, which `what` names.
  void read(const std::byte* from, std::uint64_t bytes, std::byte* to, const std::string& what) const;
  /// Lets go of the memory of what is mapped there: the file is read again where somebody looks again.
  void forget(const std::byte* from, std::uint64_t bytes) const noexcept;

 private:
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace ferry::engine
