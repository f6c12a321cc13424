// What latent attention needs in addition to attention itself.
#include <cmath>
#include <cub/warp/warp_reduce.cuh>

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/vectors.hpp"
#include "ferry/codec/pass_through.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

constexpr std::uint32_t warps = 8, threads = warps * lanes;

/// A warp for each head of a row's queries, and one for its latent vector; rows over blockIdx.x.
__global__ void __launch_bounds__(threads)
    place_kernel(float* q, const float* latent, Preparation p, const RowPlace* rows, std::uint32_t layer, LatentShape s,
                 float* queries) {
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, number = blockIdx.y * warps + threadIdx.x / lanes;
  if (number > s.heads) return;
  const RowPlace place = rows[blockIdx.x];
  const std::uint32_t width = s.rank + p.turned;
  const float* from;
  float *to, growth = 1;
  if (number < s.heads) {
    const std::uint64_t head = std::uint64_t{blockIdx.x} * s.heads + number;
    float* const plain = q + head * (s.plain + p.turned);
    if (p.growth.by > 0) {
      growth = grown(p.growth, place.position);
      for (std::uint32_t i = lane; i < s.plain; i += lanes) plain[i] *= growth;
    }
    from = plain + s.plain;
    to = queries + head * width + s.rank;
  } else {
    const float* whole = latent + std::uint64_t{blockIdx.x} * width;
    float* kept = place.cache + (std::uint64_t{layer} * place.capacity + place.position) * width;
    for (std::uint32_t i = lane; i < s.rank; i += lanes) kept[i] = whole[i];
    from = whole + s.rank;
    to = kept + s.rank;
  }
  const bool is_long = p.long_from > 0 && place.capacity > p.long_from;
  const float* frequency = is_long ? p.long_frequency : p.frequency;
  const float factor = (is_long ? p.long_factor : p.factor) * growth;
  const std::uint32_t half = p.turned / 2;
  for (std::uint32_t i = lane; i < half; i += lanes) {
    const std::uint32_t first = s.neighbours ? 2 * i : i, second = s.neighbours ? 2 * i + 1 : i + half;
    const float angle = static_cast<float>(place.position) * frequency[i];
    const float cosine = cosf(angle) * factor, sine = sinf(angle) * factor, a = from[first], b = from[second];
    to[first] = a * cosine - b * sine;
    to[second] = b * cosine + a * sine;
  }
}

constexpr std::uint32_t rows_together = 4;

/// A block takes one head of up to four rows: heads over blockIdx.x, rows over blockIdx.y. A warp makes one output at a time.
template <FloatType type>
__global__ void __launch_bounds__(threads) heads_kernel(HeadProducts h, std::uint32_t n) {
  __shared__ float staged[rows_together][most_head_inputs];
  __shared__ typename cub::WarpReduce<float>::TempStorage reduce[warps][rows_together];
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, head = blockIdx.x;
  const std::uint32_t first = blockIdx.y * rows_together;
  for (std::uint32_t r = 0; r < rows_together; ++r) {
    const float* x = h.x + (first + r) * h.x_row + head * h.x_head;
    for (std::uint32_t i = threadIdx.x; i < h.inputs; i += threads) staged[r][i] = first + r < n ? x[i] : 0;
  }
  __syncthreads();
  constexpr std::uint32_t bytes = type == FloatType::f32 ? 4 : 2;
  const std::byte* matrix = h.weights + std::uint64_t{head} * h.outputs * h.inputs * bytes;
  for (std::uint32_t o = warp; o < h.outputs; o += warps) {
    const std::byte* row = matrix + std::uint64_t{o} * h.inputs * bytes;
    float sum[rows_together] = {};
    for (std::uint32_t i = lane; i < h.inputs; i += lanes) {
      float w;
      if constexpr (type == FloatType::f32) {
        w = reinterpret_cast<const float*>(row)[i];
      } else {
        w = ferry::detail::widen_bf16(reinterpret_cast<const std::uint16_t*>(row)[i]);
      }
#pragma unroll
      for (std::uint32_t r = 0; r < rows_together; ++r) sum[r] = fmaf(w, staged[r][i], sum[r]);
    }
#pragma unroll
    for (std::uint32_t r = 0; r < rows_together; ++r) {
      sum[r] = cub::WarpReduce<float>(reduce[warp][r]).Sum(sum[r]);
      if (lane == 0 && first + r < n) h.y[(first + r) * h.y_row + head * h.y_head + o] = sum[r];
    }
    __syncwarp();  // the storage of the reductions is used again
  }
}

}  // namespace

void place_latent(cudaStream_t stream, float* q, const float* latent, const Preparation& p, const RowPlace* rows,
                  std::uint32_t n, std::uint32_t layer, const LatentShape& s, float* queries) {
  if (n == 0) return;
  launch_early("place_kernel", stream, dim3(n, shares(s.heads + 1, warps)), threads, place_kernel, q, latent, p, rows,
               layer, s, queries);
}

void multiply_heads(cudaStream_t stream, const HeadProducts& h, std::uint32_t n) {
  if (h.inputs > most_head_inputs) {
    refuse("heads of " + std::to_string(h.inputs) + " inputs, expected at most " + std::to_string(most_head_inputs));
  }
  if (h.type == FloatType::f16) refuse("products of heads in f16");
  if (n == 0) return;
  auto* kernel = h.type == FloatType::f32 ? heads_kernel<FloatType::f32> : heads_kernel<FloatType::bf16>;
  launch_early("heads_kernel", stream, dim3(h.heads, shares(n, rows_together)), threads, kernel, h, n);
}

}  // namespace ferry::engine::cuda
