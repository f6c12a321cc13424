// AddressSanitizer's checks of accesses, as functions that kernels call. Checked in place, kernels of unrolled loops take minutes
// to compile. AddressSanitizer's own functions compare a vector's shadow byte by byte, which takes more than half of a kernel's
// time; these compare it at once, and leave the rest to AddressSanitizer. Kernels that are compiled with
// -asan-memory-access-callback-prefix=ferry_asan_ call these, and this file is compiled without sanitizers.
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {

#define FERRY_CHECKS(size)                              \
  void __asan_load##size(std::uintptr_t address);       \
  void __asan_store##size(std::uintptr_t address);      \
  void ferry_asan_load##size(std::uintptr_t address) {  \
    __asan_load##size(address);                         \
  }                                                     \
  void ferry_asan_store##size(std::uintptr_t address) { \
    __asan_store##size(address);                        \
  }
FERRY_CHECKS(1)
FERRY_CHECKS(2)
FERRY_CHECKS(4)
FERRY_CHECKS(8)
FERRY_CHECKS(16)
#undef FERRY_CHECKS

void __asan_loadN(std::uintptr_t address, std::size_t size);
void __asan_storeN(std::uintptr_t address, std::size_t size);
void* __asan_memcpy(void* to, const void* from, std::size_t size);
void* __asan_memmove(void* to, const void* from, std::size_t size);
void* __asan_memset(void* to, int value, std::size_t size);

}  // extern "C"

namespace {

/// The shadow of an access, without its last byte.
template <class Shadow>
Shadow shadow_of(const unsigned char* shadow) {
  Shadow all;
  std::memcpy(&all, shadow, sizeof all);
  return all;
}

/// Whether all bytes can be accessed, as their shadow says: a byte for each eight, zero if all of these can be. False if that is
/// not known at once.
bool is_clean(std::uintptr_t address, std::size_t size) {
#if defined(__x86_64__) && defined(__linux__)
  const auto* shadow = reinterpret_cast<const unsigned char*>((address >> 3U) + 0x7fff8000U);
  const unsigned char last = shadow[((address + size - 1) >> 3U) - (address >> 3U)];
  if (size <= 8) return (shadow[0] | last) == 0;
  if (size == 16) return (shadow_of<std::uint16_t>(shadow) | last) == 0;
  if (size == 32) return (shadow_of<std::uint32_t>(shadow) | last) == 0;
  if (size == 64) return (shadow_of<std::uint64_t>(shadow) | last) == 0;
#else
  (void)address, (void)size;
#endif
  return false;
}

}  // namespace

extern "C" {

void ferry_asan_loadN(std::uintptr_t address, std::size_t size) {
  if (!is_clean(address, size)) __asan_loadN(address, size);
}
void ferry_asan_storeN(std::uintptr_t address, std::size_t size) {
  if (!is_clean(address, size)) __asan_storeN(address, size);
}
void* ferry_asan_memcpy(void* to, const void* from, std::size_t size) {
  return __asan_memcpy(to, from, size);
}
void* ferry_asan_memmove(void* to, const void* from, std::size_t size) {
  return __asan_memmove(to, from, size);
}
void* ferry_asan_memset(void* to, int value, std::size_t size) {
  return __asan_memset(to, value, size);
}

}  // extern "C"
