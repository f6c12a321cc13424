#include "expert_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "support/errors.hpp"

namespace ferry::llama_cpp {
namespace {

std::uint64_t page_size() noexcept {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

ExpertPages::ExpertPages(const std::vector<WatchedLayer>& layers) {
  for (const WatchedLayer& l : layers) {
    auto& matrices = layers_.emplace_back();
    for (const ggml_tensor* m : l.matrices) {
      matrices.push_back({static_cast<char*>(m->data), m->nb[2], static_cast<std::uint64_t>(m->ne[2])});
    }
  }
  find_files();
}

ExpertPages::~ExpertPages() {
  for (const auto& [path, file] : files_) ::close(file);
}

/// By the kernel's own list of this process's mappings: "begin-end flags offset device inode path".
void ExpertPages::find_files() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long begin = 0, end = 0, offset = 0;
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %*s %n", &begin, &end, &offset, &path) != 3) continue;
    if (path == 0 || line[static_cast<std::size_t>(path)] != '/') continue;
    for (auto& matrices : layers_) {
      for (Matrix& m : matrices) {
        const auto at = reinterpret_cast<std::uintptr_t>(m.begin);
        if (at < begin || at >= end) continue;
        const std::string name = line.substr(static_cast<std::size_t>(path));
        const auto [file, added] = files_.try_emplace(name, -1);
        if (added) file->second = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
        if (file->second < 0) throw engine::InputError(name + ": " + std::strerror(errno));
        m.file = file->second;
        m.offset = at - begin + offset;
      }
    }
  }
  for (const auto& matrices : layers_) {
    for (const Matrix& m : matrices) {
      if (m.file < 0) throw engine::InputError("the experts lie in no mapped file: llama.cpp has copied them");
    }
  }
}

/// Every page with a byte of the expert.
ExpertPages::Pages ExpertPages::around(const Matrix& m, std::uint64_t expert) noexcept {
  const std::uint64_t first = m.offset + expert * m.expert_bytes, last = first + m.expert_bytes;
  const std::uint64_t begin = first / page_size() * page_size();
  return {m.begin + (static_cast<std::int64_t>(begin) - static_cast<std::int64_t>(m.offset)), last - begin, begin};
}

/// The pages that hold nothing but these experts.
ExpertPages::Pages ExpertPages::within(const Matrix& m, std::uint64_t first, std::uint64_t count) noexcept {
  const std::uint64_t from = m.offset + first * m.expert_bytes, to = from + count * m.expert_bytes;
  const std::uint64_t begin = (from + page_size() - 1) / page_size() * page_size(),
                      end = to / page_size() * page_size();
  return {m.begin + (begin - m.offset), end > begin ? end - begin : 0, begin};
}

void ExpertPages::request(ExpertId id) const noexcept {
  for (const Matrix& m : layers_[id.layer]) {
    const Pages p = around(m, id.expert);
    static_cast<void>(
        ::posix_fadvise(m.file, static_cast<off_t>(p.offset), static_cast<off_t>(p.bytes), POSIX_FADV_WILLNEED));
  }
}

void ExpertPages::map(ExpertId id) const noexcept {
  for (const Matrix& m : layers_[id.layer]) {
    const Pages p = around(m, id.expert);
    static_cast<void>(::madvise(p.begin, p.bytes, MADV_POPULATE_READ));
  }
}

/// The kernel frees no mapped page. So the mapping is dropped first; the kernel restores it at the next access.
void ExpertPages::release(const Matrix& m, const Pages& p) noexcept {
  if (p.bytes == 0) return;
  static_cast<void>(::madvise(p.begin, p.bytes, MADV_DONTNEED));
  static_cast<void>(
      ::posix_fadvise(m.file, static_cast<off_t>(p.offset), static_cast<off_t>(p.bytes), POSIX_FADV_DONTNEED));
}

void ExpertPages::release(ExpertId id) const noexcept {
  for (const Matrix& m : layers_[id.layer]) release(m, within(m, id.expert, 1));
}

void ExpertPages::release_all() const noexcept {
  for (const auto& matrices : layers_) {
    for (const Matrix& m : matrices) release(m, within(m, 0, m.experts));
  }
}

}  // namespace ferry::llama_cpp
