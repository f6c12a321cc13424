// What is small around the products: descriptors, embedding, norms, sums.
#include <algorithm>
#include <cstring>
#include <cub/block/block_reduce.cuh>

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

constexpr std::uint32_t threads = 256;

/// Bytes as an argument of a kernel, of which all together may have 4 KiB.
template <std::uint32_t words>
struct Payload {
  std::uint32_t word[words];
};

constexpr std::uint32_t put_threads = 128, small_words = 128, most_words = 896;

template <std::uint32_t words>
__global__ void put_kernel(Payload<words> payload, std::byte* to, std::uint32_t bytes) {
  const std::uint32_t i = blockIdx.x * put_threads + threadIdx.x, left = bytes - 4 * i;
  if (4 * i >= bytes) return;
  const std::uint32_t word = payload.word[i];
  if (left >= 4 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    reinterpret_cast<std::uint32_t*>(to)[i] = word;
    return;
  }
  for (std::uint32_t b = 0; b < 4 && b < left; ++b) to[4 * i + b] = static_cast<std::byte>(word >> 8 * b & 0xffU);
}

template <std::uint32_t words>
void put_piece(cudaStream_t stream, std::byte* to, const std::byte* from, std::uint32_t bytes) {
  Payload<words> payload{};
  std::memcpy(&payload, from, bytes);
  launch("put_kernel", stream, dim3(shares(bytes, 4 * put_threads)), put_threads, put_kernel<words>, payload, to,
         bytes);
}

template <FloatType type>
__global__ void embed_kernel(const std::byte* table, std::uint32_t hidden, const RowPlace* rows, float* x) {
  constexpr std::uint32_t bytes = type == FloatType::f32 ? 4 : 2;
  const std::byte* row = table + std::uint64_t{rows[blockIdx.x].token} * hidden * bytes;
  x += std::uint64_t{blockIdx.x} * hidden;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += threads) {
    if constexpr (type == FloatType::f32) {
      x[i] = reinterpret_cast<const float*>(row)[i];
    } else {
      const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[i];
      x[i] = type == FloatType::bf16 ? ferry::detail::widen_bf16(bits) : ferry::detail::widen_f16(bits);
    }
  }
}

__global__ void embed_blocks(BlockLayout table, const std::byte* weights, const RowPlace* rows, float* x) {
  x += std::uint64_t{blockIdx.x} * table.columns;
  const std::uint32_t each = block_weights(table.type);
  for (std::uint32_t i = threadIdx.x; i < table.row_blocks(); i += threads) {
    const std::uint32_t first = i * each, left = table.columns - first;
    unpack_columns(table, weights, rows[blockIdx.x].token, first, left < each ? left : each, x + first);
  }
}

__global__ void __launch_bounds__(threads)
    rms_norm_kernel(const float* x, const float* weight, float epsilon, std::uint32_t hidden, float* y) {
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage reduce;
  __shared__ float shared_scale;
  x += std::uint64_t{blockIdx.x} * hidden;
  y += std::uint64_t{blockIdx.x} * hidden;
  float sum = 0;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += threads) sum = fmaf(x[i], x[i], sum);
  sum = Reduce(reduce).Sum(sum);
  if (threadIdx.x == 0) shared_scale = 1.0F / sqrtf(sum / static_cast<float>(hidden) + epsilon);
  __syncthreads();
  const float scale = shared_scale;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += threads) y[i] = x[i] * weight[i] * scale;
}

__global__ void swiglu_kernel(float* gate, const float* up, std::uint64_t count) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) gate[i] = gate[i] / (1.0F + expf(-gate[i])) * up[i];
}

/// A row for each blockIdx.x; its columns over blockIdx.y.
__global__ void combine_kernel(Combined c, float* out) {
  const std::uint32_t row = blockIdx.x, column = blockIdx.y * threads + threadIdx.x;
  if (column >= c.hidden) return;
  float routed = 0;
  for (std::uint32_t rank = 0; rank < c.top_k; ++rank) {
    const std::uint64_t a = std::uint64_t{row} * c.top_k + rank;
    if (c.state[a] == left_out) continue;
    const float* results = c.state[a] == on_host ? c.host_results : c.results;
    routed += c.weights[a] * results[a * c.hidden + column];
  }
  const std::uint64_t at = std::uint64_t{row} * c.hidden + column;
  float sum = c.residual[at] + routed;
  if (c.shared != nullptr) sum += c.shared[at] / (1.0F + expf(-c.shared_factor[row]));
  out[at] = sum;
}

}  // namespace

cudaError_t has_code() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(rms_norm_kernel));
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

void put(cudaStream_t stream, void* to, const void* from, std::size_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const std::size_t piece = std::min<std::size_t>(bytes, 4 * most_words);
    if (piece <= 4 * small_words) {
      put_piece<small_words>(stream, target, source, static_cast<std::uint32_t>(piece));
    } else {
      put_piece<most_words>(stream, target, source, static_cast<std::uint32_t>(piece));
    }
    target += piece, source += piece, bytes -= piece;
  }
}

void embed(cudaStream_t stream, const DenseWeight& table, const RowPlace* rows, std::uint32_t n, float* x) {
  if (n == 0) return;
  if (table.type.blocks) {
    const BlockLayout blocks{table.rows, table.columns, table.type.block};
    launch("embed_blocks", stream, dim3(n), threads, embed_blocks, blocks, table.data, rows, x);
    return;
  }
  auto* kernel = table.type == FloatType::bf16  ? embed_kernel<FloatType::bf16>
                 : table.type == FloatType::f16 ? embed_kernel<FloatType::f16>
                                                : embed_kernel<FloatType::f32>;
  launch("embed_kernel", stream, dim3(n), threads, kernel, table.data, table.columns, rows, x);
}

void rms_norm(cudaStream_t stream, const float* x, const float* weight, float epsilon, std::uint32_t n,
              std::uint32_t hidden, float* y) {
  if (n == 0) return;
  launch("rms_norm_kernel", stream, dim3(n), threads, rms_norm_kernel, x, weight, epsilon, hidden, y);
}

void swiglu(cudaStream_t stream, float* gate, const float* up, std::uint64_t count) {
  if (count == 0) return;
  launch("swiglu_kernel", stream, dim3(shares(count, threads)), threads, swiglu_kernel, gate, up, count);
}

void combine(cudaStream_t stream, const Combined& c, float* out) {
  if (c.n == 0 || c.hidden == 0) return;
  launch("combine_kernel", stream, dim3(c.n, shares(c.hidden, threads)), threads, combine_kernel, c, out);
}

}  // namespace ferry::engine::cuda
