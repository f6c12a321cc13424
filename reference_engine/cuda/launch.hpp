/// @file
/// Launches with their errors, for the .cu files of this folder.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace ferry::engine::cuda::part {

inline constexpr std::uint32_t lanes = 32, every_lane = 0xffffffffU;

struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

/// How often `part` goes into `all`, rounded up.
constexpr std::uint32_t shares(std::uint64_t all, std::uint32_t part) {
  return static_cast<std::uint32_t>((all + part - 1) / part);
}

/// Whether this build's code lets kernels begin early, from compute capability 9.0 on: on the first device that asks, which
/// the others must be like.
bool begins_early();

/// Lets the next kernel of the stream begin, if it is launched early, once all blocks of this one have called it.
__device__ __forceinline__ void let_next_begin() {
#if defined(FERRY_EMULATED_CUDA) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
/// Returns once all kernels before this one have ended, and what they wrote can be read.
__device__ __forceinline__ void after_previous() {
#if defined(FERRY_EMULATED_CUDA) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
  cudaGridDependencySynchronize();
#endif
}

/// Puts a kernel on the stream. `name` is for the error.
template <class... Parameters, class... Arguments>
void launch_as(bool early, const char* name, cudaStream_t stream, dim3 grid, std::uint32_t threads,
               void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  if (early && begins_early()) {
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("launch of kernel ") + name + " in " + std::to_string(grid.x) + " x " +
                           std::to_string(grid.y) + " blocks of " + std::to_string(threads) +
                           " threads: " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

template <class... Arguments>
void launch(const char* name, cudaStream_t stream, dim3 grid, std::uint32_t threads, Arguments&&... arguments) {
  launch_as(false, name, stream, grid, threads, std::forward<Arguments>(arguments)...);
}
/// One that may begin while the kernel before it still runs, where the device can do that: its launch and its first loads
/// are then hidden. Before it reads what a kernel or a copy wrote, and before it writes, every thread calls
/// `after_previous`.
template <class... Arguments>
void launch_early(const char* name, cudaStream_t stream, dim3 grid, std::uint32_t threads, Arguments&&... arguments) {
  launch_as(true, name, stream, grid, threads, std::forward<Arguments>(arguments)...);
}

[[noreturn]] inline void refuse(const std::string& what) {
  throw std::invalid_argument("CUDA kernels: " + what);
}

}  // namespace ferry::engine::cuda::part
