// Layers with the gated delta rule or a short convolution, without their products with weights.
#include <cmath>
#include <cub/warp/warp_reduce.cuh>

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

constexpr std::uint32_t warps = 8, threads = warps * lanes;

__device__ float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}
__device__ float silu(float x) {
  return x * sigmoid(x);
}
__device__ float softplus(float x) {
  return x > 20.0F ? x : log1pf(expf(x));
}

/// A layer's part of a sequence's memory: matrices [value_heads, value_dim, key_dim], then [kernel - 1, channels].
__device__ float* memory_of(const RowPlace& place, std::uint32_t layer, const DeltaShape& s) {
  return place.behind(s.before) + layer * s.memory_numbers();
}

/// Whether row r is the first row of its sequence in this step.
__device__ bool begins(const RowPlace* rows, std::uint32_t r) {
  return r == 0 || rows[r].cache != rows[r - 1].cache;
}
__device__ bool ends(const RowPlace* rows, std::uint32_t r, std::uint32_t n) {
  return r + 1 == n || rows[r].cache != rows[r + 1].cache;
}

/// A channel's convolution over all rows, in their order: of(r) is the input of row r, put(r, sum) takes its output, and
/// memory(r) is where its sequence keeps the last `before` inputs, `channels` numbers apart.
template <class Of, class Put, class Memory>
__device__ void convolve(const float* kernel, std::uint32_t channels, std::uint32_t before, const RowPlace* rows,
                         std::uint32_t n, bool keep, const Of& of, const Put& put, const Memory& memory) {
  float weights[most_delta_kernel], last[most_delta_kernel] = {};
#pragma unroll
  for (std::uint32_t t = 0; t < most_delta_kernel; ++t) weights[t] = t <= before ? kernel[t * channels] : 0;
  for (std::uint32_t r = 0; r < n; ++r) {
    if (begins(rows, r)) {
#pragma unroll
      for (std::uint32_t t = 0; t < most_delta_kernel; ++t) {
        last[t] = t < before && rows[r].position > 0 ? memory(r)[t * channels] : 0;
      }
    }
    const float now = of(r);
    float sum = 0;
#pragma unroll
    for (std::uint32_t t = 0; t < most_delta_kernel; ++t) {
      if (t == before) last[t] = now;
      sum = fmaf(last[t], weights[t], sum);  // weights behind the kernel's end are 0
    }
    put(r, sum);
#pragma unroll
    for (std::uint32_t t = 0; t + 1 < most_delta_kernel; ++t) last[t] = t < before ? last[t + 1] : 0;
    if (!keep || !ends(rows, r, n)) continue;
#pragma unroll
    for (std::uint32_t t = 0; t < most_delta_kernel; ++t) {
      if (t < before) memory(r)[t * channels] = last[t];
    }
  }
}

/// A thread takes a channel.
__global__ void __launch_bounds__(threads)
    convolve_kernel(float* x, const float* kernel, const RowPlace* rows, std::uint32_t n, std::uint32_t layer,
                    DeltaShape s, bool keep) {
  let_next_begin();
  after_previous();
  const std::uint32_t channel = blockIdx.x * threads + threadIdx.x, channels = s.channels();
  if (channel >= channels) return;
  const std::uint64_t matrices = std::uint64_t{s.value_width()} * s.key_dim;
  convolve(
      kernel + channel, channels, s.kernel - 1, rows, n, keep,
      [&](std::uint32_t r) { return x[std::uint64_t{r} * channels + channel]; },
      [&](std::uint32_t r, float sum) { x[std::uint64_t{r} * channels + channel] = silu(sum); },
      [&](std::uint32_t r) { return memory_of(rows[r], layer, s) + matrices + channel; });
}

/// The same between two gates: a row has [before, behind, value].
__global__ void __launch_bounds__(threads)
    short_kernel(const float* x, const float* kernel, const RowPlace* rows, std::uint32_t n, std::uint32_t layer,
                 ConvolutionShape s, bool keep, float* out) {
  let_next_begin();
  after_previous();
  const std::uint32_t channel = blockIdx.x * threads + threadIdx.x;
  if (channel >= s.channels) return;
  const auto row = [&](std::uint32_t r) { return x + std::uint64_t{r} * 3 * s.channels + channel; };
  convolve(
      kernel + channel, s.channels, s.kernel - 1, rows, n, keep,
      [&](std::uint32_t r) { return row(r)[0] * row(r)[2 * s.channels]; },
      [&](std::uint32_t r, float sum) { out[std::uint64_t{r} * s.channels + channel] = row(r)[s.channels] * sum; },
      [&](std::uint32_t r) { return rows[r].behind(s.before) + layer * s.memory_numbers() + channel; });
}

/// A warp scales one head of a row's queries or keys to length 1; queries are then divided by the root of their dimension.
__global__ void __launch_bounds__(threads) lengths_kernel(float* x, DeltaShape s) {
  __shared__ typename cub::WarpReduce<float>::TempStorage reduce[warps];
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, head = blockIdx.y * warps + warp;
  if (head >= 2 * s.key_heads) return;
  x += std::uint64_t{blockIdx.x} * s.channels() + std::uint64_t{head} * s.key_dim;
  float squares = 0;
  for (std::uint32_t i = lane; i < s.key_dim; i += lanes) squares = fmaf(x[i], x[i], squares);
  squares = __shfl_sync(every_lane, cub::WarpReduce<float>(reduce[warp]).Sum(squares), 0);
  const float length = 1.0F / sqrtf(squares + DeltaShape::length_epsilon);
  const float by = head < s.key_heads ? length / sqrtf(static_cast<float>(s.key_dim)) : length;
  for (std::uint32_t i = lane; i < s.key_dim; i += lanes) x[i] *= by;
}

/// A warp takes one column of a head's matrix, which belongs to one of the head's values and is stored as a row. It goes
/// through all rows of x in their order; a lane has every 32nd of the column's numbers, at most `parts`.
template <std::uint32_t parts>
__global__ void __launch_bounds__(threads)
    delta_kernel(const float* x, const float* rates, DeltaWeights w, const RowPlace* rows, std::uint32_t n,
                 std::uint32_t layer, DeltaShape s, bool keep, float* out) {
  __shared__ typename cub::WarpReduce<float>::TempStorage reduce_known[warps], reduce_given[warps];
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, number = blockIdx.x * warps + warp;
  if (number >= s.value_width()) return;
  const std::uint32_t head = number / s.value_dim, shared_by = s.value_heads / s.key_heads;
  const std::uint32_t key_head = s.tiled ? head % s.key_heads : head / shared_by;
  const float fade_scale = w.fade_scale[head], fade_bias = w.fade_bias[head];
  float column[parts] = {};
  for (std::uint32_t r = 0; r < n; ++r) {
    float* memory = memory_of(rows[r], layer, s) + std::uint64_t{number} * s.key_dim;
    if (begins(rows, r)) {
#pragma unroll
      for (std::uint32_t p = 0; p < parts; ++p) {
        const std::uint32_t i = p * lanes + lane;
        column[p] = i < s.key_dim && rows[r].position > 0 ? memory[i] : 0;
      }
    }
    const float* query = x + std::uint64_t{r} * s.channels() + key_head * s.key_dim;
    const float *key = query + s.key_heads * s.key_dim, *of_heads = rates + std::uint64_t{r} * 2 * s.value_heads;
    const float value = x[std::uint64_t{r} * s.channels() + 2 * s.key_heads * s.key_dim + number];
    const float rate = sigmoid(of_heads[head]);
    const float fade = expf(fade_scale * softplus(of_heads[s.value_heads + head] + fade_bias));
    float keys[parts], known = 0, given = 0;
#pragma unroll
    for (std::uint32_t p = 0; p < parts; ++p) {
      const std::uint32_t i = p * lanes + lane;
      keys[p] = i < s.key_dim ? key[i] : 0;
      column[p] *= fade;
      known = fmaf(keys[p], column[p], known);
    }
    known = __shfl_sync(every_lane, cub::WarpReduce<float>(reduce_known[warp]).Sum(known), 0);
    const float change = (value - known) * rate;
#pragma unroll
    for (std::uint32_t p = 0; p < parts; ++p) {
      const std::uint32_t i = p * lanes + lane;
      column[p] = fmaf(keys[p], change, column[p]);
      given = fmaf(i < s.key_dim ? query[i] : 0, column[p], given);
    }
    given = cub::WarpReduce<float>(reduce_given[warp]).Sum(given);
    if (lane == 0) out[std::uint64_t{r} * s.value_width() + number] = given;
    if (!keep || !ends(rows, r, n)) continue;
#pragma unroll
    for (std::uint32_t p = 0; p < parts; ++p) {
      const std::uint32_t i = p * lanes + lane;
      if (i < s.key_dim) memory[i] = column[p];
    }
  }
}

/// A warp for each head of a row: out = rms_norm(out) * silu(gate).
__global__ void __launch_bounds__(threads)
    norm_gate_kernel(const float* gates, const float* norm, float epsilon, DeltaShape s, float* out) {
  __shared__ typename cub::WarpReduce<float>::TempStorage reduce[warps];
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, head = blockIdx.y * warps + warp;
  if (head >= s.value_heads) return;
  const std::uint64_t at = std::uint64_t{blockIdx.x} * s.value_width() + std::uint64_t{head} * s.value_dim;
  out += at;
  gates += at;
  float squares = 0;
  for (std::uint32_t i = lane; i < s.value_dim; i += lanes) squares = fmaf(out[i], out[i], squares);
  squares = __shfl_sync(every_lane, cub::WarpReduce<float>(reduce[warp]).Sum(squares), 0);
  const float scale = 1.0F / sqrtf(squares / static_cast<float>(s.value_dim) + epsilon);
  for (std::uint32_t i = lane; i < s.value_dim; i += lanes) out[i] = out[i] * norm[i] * scale * silu(gates[i]);
}

__global__ void __launch_bounds__(threads) weigh_kernel(const float* gates, std::uint64_t count, float* x) {
  let_next_begin();
  after_previous();
  const std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) x[i] *= sigmoid(gates[i]);
}

void check_kernel(std::uint32_t kernel) {
  if (kernel > 0 && kernel <= most_delta_kernel) return;
  refuse("a convolution over " + std::to_string(kernel) + " tokens, expected at most " +
         std::to_string(most_delta_kernel));
}

void check(const DeltaShape& s) {
  if (s.key_heads == 0 || s.value_heads == 0 || s.value_heads % s.key_heads != 0) {
    refuse(std::to_string(s.value_heads) + " heads of values cannot share " + std::to_string(s.key_heads) + " of keys");
  }
  if (s.key_dim == 0 || s.key_dim > most_delta_key || s.value_dim == 0) {
    refuse("heads of " + std::to_string(s.key_dim) + " numbers, expected at most " + std::to_string(most_delta_key));
  }
  check_kernel(s.kernel);
}

}  // namespace

void delta(cudaStream_t stream, float* x, const float* gates, const float* rates, const DeltaWeights& w,
           const RowPlace* rows, std::uint32_t n, std::uint32_t layer, const DeltaShape& s, bool keep, float* out) {
  check(s);
  if (n == 0) return;
  launch_early("convolve_kernel", stream, dim3(shares(s.channels(), threads)), threads, convolve_kernel, x, w.kernel,
               rows, n, layer, s, keep);
  launch_early("lengths_kernel", stream, dim3(n, shares(2 * s.key_heads, warps)), threads, lengths_kernel, x, s);
  const std::uint32_t parts = shares(s.key_dim, lanes);
  auto* kernel = parts == 1   ? delta_kernel<1>
                 : parts == 2 ? delta_kernel<2>
                 : parts <= 4 ? delta_kernel<4>
                              : delta_kernel<most_delta_key / lanes>;
  launch_early("delta_kernel", stream, dim3(shares(s.value_width(), warps)), threads, kernel, x, rates, w, rows, n,
               layer, s, keep, out);
  launch_early("norm_gate_kernel", stream, dim3(n, shares(s.value_heads, warps)), threads, norm_gate_kernel, gates,
               w.norm, w.epsilon, s, out);
}

void short_convolution(cudaStream_t stream, const float* x, const float* kernel, const RowPlace* rows, std::uint32_t n,
                       std::uint32_t layer, const ConvolutionShape& s, bool keep, float* out) {
  check_kernel(s.kernel);
  if (n == 0) return;
  launch_early("short_kernel", stream, dim3(shares(s.channels, threads)), threads, short_kernel, x, kernel, rows, n,
               layer, s, keep, out);
}

void weigh(cudaStream_t stream, const float* gates, std::uint64_t count, float* x) {
  if (count == 0) return;
  launch_early("weigh_kernel", stream, dim3(shares(count, threads)), threads, weigh_kernel, gates, count, x);
}

}  // namespace ferry::engine::cuda
