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

/// Puts a kernel on the stream. `name` is for the error.
template <class... Parameters, class... Arguments>
void launch(const char* name, cudaStream_t stream, dim3 grid, std::uint32_t threads, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("launch of kernel ") + name + " in " + std::to_string(grid.x) + " x " +
                           std::to_string(grid.y) + " blocks of " + std::to_string(threads) +
                           " threads: " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

[[noreturn]] inline void refuse(const std::string& what) {
  throw std::invalid_argument("CUDA kernels: " + what);
}

}  // namespace ferry::engine::cuda::part
