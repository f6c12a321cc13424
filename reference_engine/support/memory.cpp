#include "support/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace ferry::engine {

std::uint64_t physical_memory() {
  const std::uint64_t all =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t limit = 0;
  return std::ifstream("/sys/fs/cgroup/memory.max") >> limit ? std::min(all, limit) : all;  // "max": none
}

bool fits_in_memory(std::uint64_t bytes) {
  return bytes <= physical_memory() / 16 * 15;
}

}  // namespace ferry::engine
