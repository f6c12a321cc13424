#include "support/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace ferry::engine {

std::uint64_t physical_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return std::numeric_limits<std::uint64_t>::max();  // nobody knows
  const std::uint64_t all = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
  std::uint64_t limit = 0;
  return std::ifstream("/sys/fs/cgroup/memory.max") >> limit ? std::min(all, limit) : all;  // "max": none
}

bool fits_in_memory(std::uint64_t bytes) {
  return bytes <= physical_memory() / 16 * 15;
}

}  // namespace ferry::engine
