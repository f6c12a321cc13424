// Small kernels around the products: descriptors, embedding, norms, sums.
#include <algorithm>
#include <cstring>
#include <cub/block/block_reduce.cuh>

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/vectors.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

constexpr std::uint32_t threads = 256;

/// Bytes that travel as a kernel's argument. All arguments of a kernel may have 4 KiB.
template <std::uint32_t words>
struct Payload {
  std::uint32_t word[words];
};

constexpr std::uint32_t put_threads = 128, small_words = 128, most_words = 896;

template <std::uint32_t words>
__global__ void put_kernel(Payload<words> payload, std::byte* to, std::uint32_t bytes) {
  let_next_begin();
  after_previous();
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
  launch_early("put_kernel", stream, dim3(shares(bytes, 4 * put_threads)), put_threads, put_kernel<words>, payload, to,
               bytes);
}

template <FloatType type>
__global__ void embed_kernel(const std::byte* table, std::uint32_t hidden, const RowPlace* rows, float scale,
                             float* x) {
  constexpr std::uint32_t bytes = type == FloatType::f32 ? 4 : 2;
  let_next_begin();
  const std::byte* row = table + std::uint64_t{rows[blockIdx.x].token} * hidden * bytes;
  x += std::uint64_t{blockIdx.x} * hidden;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += threads) {
    if constexpr (type == FloatType::f32) {
      x[i] = scale * reinterpret_cast<const float*>(row)[i];
    } else {
      const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[i];
      x[i] = scale * (type == FloatType::bf16 ? ferry::detail::widen_bf16(bits) : ferry::detail::widen_f16(bits));
    }
  }
}

__global__ void embed_blocks(BlockLayout table, const std::byte* weights, const RowPlace* rows, float scale, float* x) {
  x += std::uint64_t{blockIdx.x} * table.columns;
  const std::uint32_t each = block_weights(table.type);
  for (std::uint32_t i = threadIdx.x; i < table.row_blocks(); i += threads) {
    const std::uint32_t first = i * each, left = table.columns - first;
    const std::uint32_t count = left < each ? left : each;
    unpack_columns(table, weights, rows[blockIdx.x].token, first, count, x + first);
    for (std::uint32_t c = first; c < first + count; ++c) x[c] *= scale;
  }
}

/// A thread keeps its first `norm_held` times four numbers in registers, so that most rows are read only once. Short rows,
/// such as those of latent attention, get a quarter of the threads: the others would have nothing to do.
constexpr std::uint32_t norm_threads = 512, few_norm_threads = norm_threads / 4, norm_held = 4;
constexpr std::uint32_t short_row = 4 * few_norm_threads;

template <std::uint32_t block>
__global__ void __launch_bounds__(block) rms_norm_kernel(const float* x, const float* weight, float epsilon,
                                                         std::uint32_t hidden, std::uint64_t stride, float* y) {
  using Reduce = cub::BlockReduce<float, block>;
  __shared__ typename Reduce::TempStorage reduce;
  __shared__ float shared_scale;
  constexpr std::uint32_t norm_step = 4 * block;
  let_next_begin();
  x += blockIdx.x * stride;
  y += blockIdx.x * stride;
  const bool aligned = hidden % 4 == 0 && stride % 4 == 0;
  const std::uint32_t first = 4 * threadIdx.x, rest = first + norm_held * norm_step;
  auto added = [](float sum, float4 v) { return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum)))); };
  float4 held[norm_held], weights[norm_held];
#pragma unroll
  for (std::uint32_t p = 0; p < norm_held; ++p) weights[p] = four_of(weight, first + p * norm_step, hidden);
  after_previous();
#pragma unroll
  for (std::uint32_t p = 0; p < norm_held; ++p) held[p] = four_of(x, first + p * norm_step, hidden, aligned);
  float sum = 0;
#pragma unroll
  for (std::uint32_t p = 0; p < norm_held; ++p) sum = added(sum, held[p]);
  for (std::uint32_t i = rest; i < hidden; i += norm_step) sum = added(sum, four_of(x, i, hidden, aligned));
  sum = Reduce(reduce).Sum(sum);
  if (threadIdx.x == 0) shared_scale = 1.0F / sqrtf(sum / static_cast<float>(hidden) + epsilon);
  __syncthreads();
  const float scale = shared_scale;
  auto put = [&](std::uint32_t i, float4 v, float4 w) {
    put_four(y, i, hidden, aligned,
             make_float4(v.x * w.x * scale, v.y * w.y * scale, v.z * w.z * scale, v.w * w.w * scale));
  };
#pragma unroll
  for (std::uint32_t p = 0; p < norm_held; ++p) put(first + p * norm_step, held[p], weights[p]);
  for (std::uint32_t i = rest; i < hidden; i += norm_step)
    put(i, four_of(x, i, hidden, aligned), four_of(weight, i, hidden));
}

template <std::uint32_t block>
__global__ void __launch_bounds__(block) layer_norm_kernel(const float* x, const float* weight, const float* bias,
                                                           float epsilon, std::uint32_t hidden, float* y) {
  using Reduce = cub::BlockReduce<float, block>;
  __shared__ typename Reduce::TempStorage reduce;
  __shared__ float shared_mean, shared_scale;
  let_next_begin();
  after_previous();
  x += std::uint64_t{blockIdx.x} * hidden;
  y += std::uint64_t{blockIdx.x} * hidden;
  float sum = 0;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += block) sum += x[i];
  sum = Reduce(reduce).Sum(sum);
  if (threadIdx.x == 0) shared_mean = sum / static_cast<float>(hidden);
  __syncthreads();  // the storage of the reduction is used again, too
  const float mean = shared_mean;
  float squares = 0;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += block) {
    squares = fmaf(x[i] - mean, x[i] - mean, squares);
  }
  squares = Reduce(reduce).Sum(squares);
  if (threadIdx.x == 0) shared_scale = 1.0F / sqrtf(squares / static_cast<float>(hidden) + epsilon);
  __syncthreads();
  const float scale = shared_scale;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += block) {
    y[i] = (x[i] - mean) * weight[i] * scale + bias[i];
  }
}

/// A row for each blockIdx.x; its columns over blockIdx.y.
__global__ void activate_kernel(float* gate, const float* up, std::uint32_t width, Activation activation, Before before,
                                const std::uint32_t* assignments) {
  const std::uint32_t column = blockIdx.y * threads + threadIdx.x;
  if (column >= width) return;
  const std::uint64_t i = std::uint64_t{blockIdx.x} * width + column;
  float g = gate[i], u = up[i];
  if (before.biases != nullptr) {
    g += float_at(before.biases, column);
    u += float_at(before.biases, std::uint64_t{width} + column);
  }
  if (before.weights != nullptr) {
    const float weight = before.weights[assignments[blockIdx.x]];
    g *= weight;
    u *= weight;
  }
  gate[i] = activated(activation, g, u);
}

/// A row for each blockIdx.x; its columns over blockIdx.y.
__global__ void combine_kernel(Combined c, float* out) {
  let_next_begin();
  after_previous();
  const std::uint32_t row = blockIdx.x, column = blockIdx.y * threads + threadIdx.x;
  if (column >= c.hidden) return;
  float routed = 0;
  for (std::uint32_t rank = 0; rank < c.top_k; ++rank) {
    const std::uint64_t a = std::uint64_t{row} * c.top_k + rank;
    if (c.state[a] == left_out) continue;
    const float* results = c.state[a] == on_host ? c.host_results : c.results;
    routed += (c.weights == nullptr ? 1 : c.weights[a]) * results[a * c.hidden + column];
  }
  const std::uint64_t at = std::uint64_t{row} * c.hidden + column;
  float sum = (c.residual == nullptr ? 0 : c.residual[at]) + c.scale * routed;
  if (c.shared != nullptr) {
    sum += c.scale * (c.shared_factor == nullptr ? c.shared[at] : c.shared[at] / (1.0F + expf(-c.shared_factor[row])));
  }
  out[at] = c.last_scale * sum;
}

}  // namespace

cudaError_t has_code() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(rms_norm_kernel<norm_threads>));
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

bool part::begins_early() {
  static const bool early = [] {
    // Code compiled for less than 9.0 has no waits in it, even if the driver compiles it for a newer device.
    cudaFuncAttributes attributes{};
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(rms_norm_kernel<norm_threads>));
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    return error == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return early;
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

void embed(cudaStream_t stream, const DenseWeight& table, const RowPlace* rows, std::uint32_t n, float scale,
           float* x) {
  if (n == 0) return;
  if (table.type.blocks) {
    const BlockLayout blocks{table.rows, table.columns, table.type.block};
    launch("embed_blocks", stream, dim3(n), threads, embed_blocks, blocks, table.data, rows, scale, x);
    return;
  }
  auto* kernel = table.type == FloatType::bf16  ? embed_kernel<FloatType::bf16>
                 : table.type == FloatType::f16 ? embed_kernel<FloatType::f16>
                                                : embed_kernel<FloatType::f32>;
  launch("embed_kernel", stream, dim3(n), threads, kernel, table.data, table.columns, rows, scale, x);
}

void rms_norm(cudaStream_t stream, const float* x, const float* weight, float epsilon, std::uint32_t n,
              std::uint32_t hidden, std::uint64_t stride, float* y) {
  if (n == 0) return;
  const bool few = hidden <= short_row;
  launch_early("rms_norm_kernel", stream, dim3(n), few ? few_norm_threads : norm_threads,
               few ? rms_norm_kernel<few_norm_threads> : rms_norm_kernel<norm_threads>, x, weight, epsilon, hidden,
               stride, y);
}

void layer_norm(cudaStream_t stream, const float* x, const float* weight, const float* bias, float epsilon,
                std::uint32_t n, std::uint32_t hidden, float* y) {
  if (n == 0) return;
  const bool few = hidden <= short_row;
  launch_early("layer_norm_kernel", stream, dim3(n), few ? few_norm_threads : norm_threads,
               few ? layer_norm_kernel<few_norm_threads> : layer_norm_kernel<norm_threads>, x, weight, bias, epsilon,
               hidden, y);
}

void activate(cudaStream_t stream, float* gate, const float* up, std::uint32_t n, std::uint32_t width,
              const Activation& activation, const Before& before, const std::uint32_t* assignments) {
  if (n == 0 || width == 0) return;
  launch("activate_kernel", stream, dim3(n, shares(width, threads)), threads, activate_kernel, gate, up, width,
         activation, before, assignments);
}

void combine(cudaStream_t stream, const Combined& c, float* out) {
  if (c.n == 0 || c.hidden == 0) return;
  launch_early("combine_kernel", stream, dim3(c.n, shares(c.hidden, threads)), threads, combine_kernel, c, out);
}

}  // namespace ferry::engine::cuda
