// Reads or writes so many bytes at such a place of 96 bytes, as kernels do: for the test that AddressSanitizer sees what is behind.
//   overrun load2|load16|load32|store32 PLACE
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>

namespace {

[[gnu::noinline, gnu::target("avx2")]] void touch(const char* what, char* at) {
  if (std::strcmp(what, "load2") == 0) {
    short value;
    std::memcpy(&value, at, sizeof value);
    std::printf("%d\n", value);
  } else if (std::strcmp(what, "load16") == 0) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    std::printf("%d\n", _mm_testz_si128(value, value));
  } else if (std::strcmp(what, "load32") == 0) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    std::printf("%d\n", _mm256_testz_si256(value, value));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_set1_epi8(1));
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const auto memory = std::make_unique<char[]>(96);
  touch(arguments[1], memory.get() + std::atoi(arguments[2]));
  std::printf("%d: no access beyond\n", memory[95]);
}
#endif
