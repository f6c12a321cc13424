// Compiled without contraction (CMakeLists.txt): a product and a sum in one rounding are not what the formats' own code computes.
#include "math/unpack_blocks.hpp"

namespace ferry::engine {

// Sanitizers are not ready yet when a program finds out which clone it runs.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FERRY_CLONES [[gnu::target_clones("avx512f", "avx2", "default"), gnu::flatten]]
#else
#define FERRY_CLONES
#endif

FERRY_CLONES
void unpack_rows(const BlockLayout& w, const std::byte* weights, std::uint32_t first, std::uint32_t count, float* to) {
  for (std::uint32_t r = 0; r < count; ++r) unpack_row(w, weights, first + r, to + std::size_t{r} * w.columns);
}

}  // namespace ferry::engine
