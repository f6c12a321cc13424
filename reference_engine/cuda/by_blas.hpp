/// @file
/// Products of many rows, for the .cu files of this folder.
#pragma once
#include "cuda/kernels.hpp"

namespace ferry::engine::cuda::part {

/// y = x W^T, or with `add` y += that, by cuBLAS: W becomes floats in the context's scratch memory, as many of its rows
/// at a time as fit. x: [n, columns], y: [n, rows]; `weights`: W as `w` says.
void multiply_by_blas(const Context& context, const float* x, std::uint32_t n, const PassThroughLayout& w,
                      const std::byte* weights, bool add, float* y);
void multiply_by_blas(const Context& context, const float* x, std::uint32_t n, const PackedLayout& w,
                      const std::byte* weights, bool add, float* y);
void multiply_by_blas(const Context& context, const float* x, std::uint32_t n, const BlockLayout& w,
                      const std::byte* weights, bool add, float* y);

}  // namespace ferry::engine::cuda::part
