/// @file
/// Files in memory, which others may change meanwhile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

namespace ferry::engine {

/// Which file a name led to, and in which state.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0, bytes = 0;
  std::int64_t modified_ns = 0;  ///< whoever writes may set it back
  std::int64_t changed_ns = 0;   ///< which nobody can set; it also changes with names, rights and owners
  std::uint64_t names = 0;       ///< how many lead to it
  std::uint32_t rights = 0, owner = 0, group = 0;

  bool operator==(const FileIdentity&) const = default;
};

/// A file, read-only. Throws InputError if it cannot be opened, is not a regular file, or changes while it is copied.
class MappedFile {
 public:
  /// Mapped, it is read where somebody looks: what is written to it meanwhile is seen, and what is cut off it ends the
  /// process (`report_lost_files`). Copied, it takes memory and stays as it was.
  enum class Hold { mapped, copied };

  explicit MappedFile(const std::filesystem::path& path, Hold hold = Hold::mapped);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return identity_.bytes; }
  /// As it was when it was opened.
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }
  /// Copies what is mapped at `from`, but reads the file for it: a disk that fails is then an error and not a signal, and what
  /// is read this way need not stay in memory. Throws InputError, which `what` names, also for a file that was written to since
  /// it was opened.
  void read(const std::byte* from, std::uint64_t bytes, std::byte* to, const std::string& what) const;
  /// Lets go of the memory of what is mapped there: the file is read again where somebody looks again.
  void forget(const std::byte* from, std::uint64_t bytes) const noexcept;
  /// Throws InputError if what is mapped was written to since it was opened, or its name leads to another file now. What
  /// was copied has not changed.
  void check_unchanged() const;

 private:
  bool is_unchanged() const;
  void copy();
  void map();
  void close() noexcept;

  std::string name_, shown_;  ///< shown_: as it may go to a terminal
  int fd_ = -1;               ///< of what is mapped
  int slot_ = -1;             ///< where the handler of signals finds it
  const std::byte* data_ = nullptr;
  FileIdentity identity_;
  mutable std::mutex checks_;
  mutable FileIdentity known_;  ///< the state in which it was found last, of which the content is that of `identity_`
  mutable bool is_elsewhere_ = false;  ///< `name_` did not lead to it then
};

/// From now on, where a mapped file became shorter or its disk fails, one line on standard error names it, and the process
/// ends with status 2: there is no going on from there.
void report_lost_files();

}  // namespace ferry::engine
