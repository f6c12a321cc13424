/// @file
/// The pages of a mapped file that hold each expert.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ferry/model.hpp"
#include "gate_watcher.hpp"

namespace ferry::llama_cpp {

/// Asks the kernel to bring an expert's pages in, or to let them go. All of it is advice: the kernel itself brings in what is
/// missing when llama.cpp reads it. Calls are const and safe from any thread.
class ExpertPages {
 public:
  /// Throws InputError if the weights do not lie in a mapped file.
  explicit ExpertPages(const std::vector<WatchedLayer>& layers);
  ~ExpertPages();
  ExpertPages(const ExpertPages&) = delete;
  ExpertPages& operator=(const ExpertPages&) = delete;

  /// Queues reads of what is not in memory, and returns.
  void request(ExpertId id) const noexcept;
  /// Waits until all pages are in memory, and has them mapped, so that reading them takes no page fault.
  void map(ExpertId id) const noexcept;
  /// Frees the pages that hold nothing else.
  void release(ExpertId id) const noexcept;
  /// The same for all experts, including pages that hold parts of several.
  void release_all() const noexcept;

 private:
  /// A matrix of all experts of a layer, expert after expert.
  struct Matrix {
    char* begin = nullptr;
    std::uint64_t expert_bytes = 0, experts = 0;
    std::uint64_t offset = 0;  ///< of `begin` in the file
    int file = -1;
  };
  /// Pages, from the first byte of one to behind the last of another.
  struct Pages {
    char* begin = nullptr;
    std::uint64_t bytes = 0, offset = 0;
  };

  void find_files();
  static Pages around(const Matrix& m, std::uint64_t expert) noexcept;
  static Pages within(const Matrix& m, std::uint64_t first, std::uint64_t count) noexcept;
  static void release(const Matrix& m, const Pages& pages) noexcept;

  std::vector<std::vector<Matrix>> layers_;
  std::map<std::string, int> files_;  ///< open, by path
};

}  // namespace ferry::llama_cpp
