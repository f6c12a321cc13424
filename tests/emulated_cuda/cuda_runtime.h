/// @file
/// CUDA's device language for a host compiler, as far as Ferry's kernels use it: see emulated_cuda.hpp and blocks.hpp.
///
/// Not there: <<<>>>, dynamic shared memory, cooperative groups, half types, textures. With g++, `#pragma unroll` needs
/// -Wno-unknown-pragmas.
#pragma once
#include <math.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "blocks.hpp"
#include "cuda_runtime_api.h"

#define FERRY_EMULATED_CUDA
#define __global__
#define __device__
#define __host__
#define __constant__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// Blocks run one at a time, and find NaNs in shared memory. That needs a compiler that lets the variables of all kernels share
// a section, which g++ does not, and no sanitizer that checks their bounds, which needs them apart.
#if defined(__clang__)
#if !__has_feature(address_sanitizer)
#define __shared__ static __attribute__((used, section("emulated_shared")))
#endif
#endif
#if !defined(__shared__)
#define __shared__ static
#endif

// Launches

template <class... Expected, class... Actual>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...), Actual&&... actual) {
  static_assert(sizeof...(Expected) == sizeof...(Actual), "a launch gives every parameter of the kernel");
  static_assert((!std::is_reference_v<Expected> && ...), "parameters of kernels are values");
  static_assert((std::is_convertible_v<Actual, Expected> && ...), "an argument does not convert to its parameter");
  using Kernel = void (*)(Expected...);
  return ferry::test::emulated::launch(
      config, reinterpret_cast<const void*>(kernel), typeid(Kernel),
      std::make_unique<ferry::test::emulated::BoundArguments<Expected...>>(kernel, std::forward<Actual>(actual)...));
}

// The runtime's functions for pointers of any type

template <class T>
cudaError_t cudaMalloc(T** pointer, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, std::size_t bytes) {
  return cudaMallocHost(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, std::size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags) {
  return cudaHostGetDevicePointer(reinterpret_cast<void**>(device), host, flags);
}

// Barriers and fences

inline void __syncthreads() {
  ferry::test::emulated::meet_block();
}
// On a GPU a kernel that is launched early waits here for the one before it. Here it begins late, so the wait is only noted.
inline void cudaGridDependencySynchronize() {
  ferry::test::emulated::note_waited();
}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void __syncwarp(unsigned mask = ~0U) {
  ferry::test::emulated::meet_warp(ferry::test::emulated::Meeting::sync, mask, nullptr, nullptr);
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
  __threadfence();
}
inline void __threadfence_system() {
  __threadfence();
}
[[noreturn]] inline void __trap() {
  ferry::test::emulated::die_in_kernel("__trap");
}

// Exchange between the lanes of a warp

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = ferry::test::emulated::thread_number() % 32, w = static_cast<unsigned>(width);
  return ferry::test::emulated::shuffle(mask, value, (lane & ~(w - 1)) | (static_cast<unsigned>(source) & (w - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned lane = ferry::test::emulated::thread_number() % 32, w = static_cast<unsigned>(width);
  const unsigned source = lane ^ static_cast<unsigned>(bits);
  return ferry::test::emulated::shuffle(mask, value, source > (lane | (w - 1)) ? lane : source);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const unsigned lane = ferry::test::emulated::thread_number() % 32, w = static_cast<unsigned>(width);
  return ferry::test::emulated::shuffle(mask, value, lane + distance > (lane | (w - 1)) ? lane : lane + distance);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const unsigned lane = ferry::test::emulated::thread_number() % 32, w = static_cast<unsigned>(width);
  return ferry::test::emulated::shuffle(mask, value, distance > (lane & (w - 1)) ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return ferry::test::emulated::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return ferry::test::emulated::ballot(mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return ferry::test::emulated::ballot(mask, predicate == 0) == 0;
}

// Atomics: hosts may look at mapped memory meanwhile

namespace ferry::test::emulated {

/// Sets *p to change(*p), and returns the old value.
template <class T, class Change>
T exchange_atomically(T* p, const Change& change) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  for (;;) {
    T changed = change(old);
    if (__atomic_compare_exchange(p, &old, &changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

}  // namespace ferry::test::emulated

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T old) { return static_cast<T>(old - v); });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T old) { return old < v ? v : old; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T old) { return v < old ? v : old; });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T) { return v; });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [=](T old) { return old == expected ? v : old; });
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T old) { return static_cast<T>(old | v); });
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> v) {
  return ferry::test::emulated::exchange_atomically(p, [v](T old) { return static_cast<T>(old & v); });
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  return ferry::test::emulated::exchange_atomically(p, [last](unsigned old) { return old >= last ? 0 : old + 1; });
}

// Loads and stores with a word on caches

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
  *p = v;
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> v) {
  *p = v;
}

// Bits

namespace ferry::test::emulated {

template <class To, class From>
To same_bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

}  // namespace ferry::test::emulated

inline unsigned __float_as_uint(float v) {
  return ferry::test::emulated::same_bits<unsigned>(v);
}
inline float __uint_as_float(unsigned v) {
  return ferry::test::emulated::same_bits<float>(v);
}
inline int __float_as_int(float v) {
  return ferry::test::emulated::same_bits<int>(v);
}
inline float __int_as_float(int v) {
  return ferry::test::emulated::same_bits<float>(v);
}
inline int __popc(unsigned v) {
  return __builtin_popcount(v);
}
inline int __popcll(unsigned long long v) {
  return __builtin_popcountll(v);
}
inline int __clz(int v) {
  return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v));
}
inline int __ffs(int v) {
  return __builtin_ffs(v);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32U | low) >> (shift & 31U));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32U | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned s = selector >> 4 * i & 15U;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (s & 7U)) & 0xFFU;
    if (s >= 8) byte = byte >= 0x80 ? 0xFF : 0;  // its sign
    result |= byte << 8 * i;
  }
  return result;
}

// Arithmetic. glibc declares some of these names, so they have to be macros.

#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

inline float rsqrtf(float v) {
  return 1.0F / sqrtf(v);
}
inline double rsqrt(double v) {
  return 1.0 / sqrt(v);
}
inline float __frcp_rn(float v) {
  return 1.0F / v;
}
inline float __fsqrt_rn(float v) {
  return sqrtf(v);
}
inline float __frsqrt_rn(float v) {
  return 1.0F / sqrtf(v);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
// A call, so that the product is not contracted with what follows.
__attribute__((noinline)) inline float __fmul_rn(float a, float b) {
  return a * b;
}
__attribute__((noinline)) inline float __fadd_rn(float a, float b) {
  return a + b;
}
__attribute__((noinline)) inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline float __saturatef(float v) {
  return v > 0 ? (v < 1 ? v : 1.0F) : 0.0F;
}
inline float __int2float_rn(int v) {
  return static_cast<float>(v);
}
inline float __uint2float_rn(unsigned v) {
  return static_cast<float>(v);
}
inline int __float2int_rn(float v) {
  return static_cast<int>(rintf(v));
}
inline int __float2int_rz(float v) {
  return static_cast<int>(v);
}

inline int min(int a, int b) {
  return a < b ? a : b;
}
inline int max(int a, int b) {
  return a < b ? b : a;
}
inline unsigned min(unsigned a, unsigned b) {
  return a < b ? a : b;
}
inline unsigned max(unsigned a, unsigned b) {
  return a < b ? b : a;
}
inline long min(long a, long b) {
  return a < b ? a : b;
}
inline long max(long a, long b) {
  return a < b ? b : a;
}
inline unsigned long min(unsigned long a, unsigned long b) {
  return a < b ? a : b;
}
inline unsigned long max(unsigned long a, unsigned long b) {
  return a < b ? b : a;
}
inline long long min(long long a, long long b) {
  return a < b ? a : b;
}
inline long long max(long long a, long long b) {
  return a < b ? b : a;
}
inline unsigned long long min(unsigned long long a, unsigned long long b) {
  return a < b ? a : b;
}
inline unsigned long long max(unsigned long long a, unsigned long long b) {
  return a < b ? b : a;
}
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}
