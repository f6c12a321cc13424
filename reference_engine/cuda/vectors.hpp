/// @file
/// What kernels share beside products. Vectors of a multiple of four numbers begin at a multiple of 16 bytes.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/kernels.hpp"

namespace ferry::engine::cuda::part {

/// Elements `i` to `i` + 3 of a vector, zeros behind its end. `aligned`: its size is a multiple of four, and so it begins
/// aligned.
__device__ __forceinline__ float4 four_of(const float* vector, std::uint32_t i, std::uint32_t size, bool aligned) {
  if (aligned) return i < size ? *reinterpret_cast<const float4*>(vector + i) : make_float4(0, 0, 0, 0);
  return make_float4(i < size ? vector[i] : 0, i + 1 < size ? vector[i + 1] : 0, i + 2 < size ? vector[i + 2] : 0,
                     i + 3 < size ? vector[i + 3] : 0);
}
__device__ __forceinline__ float4 four_of(const float* vector, std::uint32_t i, std::uint32_t size) {
  return four_of(vector, i, size, size % 4 == 0);
}

/// Sets those of element `i` to `i` + 3 that the vector has.
__device__ __forceinline__ void put_four(float* vector, std::uint32_t i, std::uint32_t size, bool aligned, float4 v) {
  if (aligned) {
    if (i < size) *reinterpret_cast<float4*>(vector + i) = v;
    return;
  }
  if (i < size) vector[i] = v.x;
  if (i + 1 < size) vector[i + 1] = v.y;
  if (i + 2 < size) vector[i + 2] = v.z;
  if (i + 3 < size) vector[i + 3] = v.w;
}

/// Number `i` of floats at any address.
__device__ __forceinline__ float float_at(const std::byte* from, std::uint64_t i) {
  from += i * sizeof(float);
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(float) == 0) return *reinterpret_cast<const float*>(from);
  std::uint32_t bits = 0;
  for (std::uint32_t b = 0; b < sizeof(float); ++b) bits |= static_cast<std::uint32_t>(from[b]) << 8 * b;
  return __uint_as_float(bits);
}

__device__ __forceinline__ float grown(const Growth& g, std::uint32_t position) {
  return log1pf(floorf((static_cast<float>(position) + g.first) / g.floor)) * g.by + 1;
}

/// Keeps NaN, unlike fminf and fmaxf: a damaged model must not compute as if it were whole.
__device__ __forceinline__ float clamped(float x, float least, float most) {
  return x > most ? most : x < least ? least : x;
}

__device__ __forceinline__ float activated(const Activation& a, float gate, float up) {
  if (a.gelu) {
    constexpr float twice_root = 1.5957691216F;  // of 2 / pi: half of 1 + tanh is a sigmoid
    return gate / (1.0F + expf(-twice_root * (gate + 0.044715F * gate * gate * gate))) * up;
  }
  if (!a.clamped) return gate / (1.0F + expf(-gate)) * up;
  const float g = clamped(gate, -INFINITY, a.limit);
  return g / (1.0F + expf(-a.alpha * g)) * (clamped(up, -a.limit, a.limit) + 1.0F);
}

}  // namespace ferry::engine::cuda::part
