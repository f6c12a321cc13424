// Rotary embedding, the caches of keys and values, and attention over them.
#include <cmath>
#include <cub/warp/warp_reduce.cuh>

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "cuda/vectors.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

constexpr std::uint32_t warps = 8, threads = warps * lanes;

/// Number of positions for which a layer's keys have room; its values follow behind them.
__device__ std::uint32_t room_of(const RowPlace& place, const AttentionShape& s) {
  return s.recent ? place.recent : place.capacity;
}

/// Width of a row's queries, keys and values, or of its queries alone in latent attention.
__device__ std::uint64_t row_width(const AttentionShape& s) {
  if (s.latent > 0) return std::uint64_t{s.heads} * s.head_dim;
  return std::uint64_t{s.heads + 2 * s.kv_heads} * s.head_dim;
}

/// A warp for each head of a row's queries, keys and values; rows over blockIdx.x.
__global__ void __launch_bounds__(threads)
    prepare_kernel(float* qkv, Preparation p, const RowPlace* rows, CacheNumbers before, AttentionShape s) {
  __shared__ float staged[warps][most_head_dim];
  __shared__ typename cub::WarpReduce<float>::TempStorage reduce[warps];
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, dim = s.head_dim;
  const std::uint32_t number = blockIdx.y * warps + warp;
  if (number >= s.heads + 2 * s.kv_heads) return;
  const RowPlace place = rows[blockIdx.x];
  const bool query = number < s.heads, value = number >= s.heads + s.kv_heads;
  float* head = qkv + blockIdx.x * row_width(s) + std::uint64_t{number} * dim;
  float* x = staged[warp];
  for (std::uint32_t i = lane; i < dim; i += lanes) {
    x[i] = p.clip > 0 ? clamped(head[i], -p.clip, p.clip) : head[i];
  }
  __syncwarp();
  auto norm = [&] {
    const float* weight = value ? nullptr : query ? p.q_norm : p.k_norm;
    float sum = 0;
    for (std::uint32_t i = lane; i < dim; i += lanes) sum = fmaf(x[i], x[i], sum);
    sum = __shfl_sync(every_lane, cub::WarpReduce<float>(reduce[warp]).Sum(sum), 0);
    const float scale = 1.0F / sqrtf(sum / static_cast<float>(dim) + p.epsilon);
    for (std::uint32_t i = lane; i < dim; i += lanes) x[i] = x[i] * (weight == nullptr ? 1 : weight[i]) * scale;
    __syncwarp();
  };
  const bool normed = !value && p.q_norm != nullptr;
  if (value && p.value_norm) norm();
  if (normed && !p.norm_behind) norm();
  if (!value && p.turned > 0) {
    const bool is_long = p.long_from > 0 && place.capacity > p.long_from;
    const float* frequency = is_long ? p.long_frequency : p.frequency;
    const float factor = is_long ? p.long_factor : p.factor;
    const std::uint32_t half = p.turned / 2;
    for (std::uint32_t i = lane; i < half; i += lanes) {
      const float angle = static_cast<float>(place.position) * frequency[i];
      const float cosine = cosf(angle) * factor, sine = sinf(angle) * factor, a = x[i], b = x[i + half];
      x[i] = a * cosine - b * sine;
      x[i + half] = b * cosine + a * sine;
    }
    __syncwarp();
  }
  if (normed && p.norm_behind) norm();
  if (query && p.growth.by > 0) {
    const float factor = grown(p.growth, place.position);
    for (std::uint32_t i = lane; i < dim; i += lanes) x[i] *= factor;
  }
  if (query) {
    for (std::uint32_t i = lane; i < dim; i += lanes) head[i] = x[i];
    return;
  }
  const std::uint32_t kv_head = number - s.heads - (value ? s.kv_heads : 0), kv_width = s.kv_heads * dim;
  const std::uint32_t room = room_of(place, s);
  float* to = place.behind(before) + (value ? std::uint64_t{room} * kv_width : 0) +
              std::uint64_t{place.position % room} * kv_width + kv_head * dim;
  for (std::uint32_t i = lane; i < dim; i += lanes) to[i] = x[i];
}

/// A block takes one head of one row. Its warps take 32 positions each in turn, and keep a running softmax: the largest score
/// so far, and sums relative to it. In the end the warps' sums are merged in a fixed order.
///
/// `parts`: a head has at most so many times 32 elements. `wraps`: positions may wrap around at the end of the room.
template <std::uint32_t parts, bool wraps>
__global__ void __launch_bounds__(threads, 2)
    attention_kernel(const float* qkv, const RowPlace* rows, CacheNumbers before, AttentionShape s, float* out) {
  constexpr std::uint32_t team = 8, teams = lanes / team;  // lanes that make one score together
  __shared__ typename cub::WarpReduce<float>::TempStorage reduce[warps], reduce_sum[warps];
  __shared__ float shared_weights[warps][lanes];
  __shared__ float shared_out[warps][parts * lanes];
  __shared__ float shared_largest[warps], shared_sum[warps];
  let_next_begin();
  after_previous();
  const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes, in_team = lane % team;
  const std::uint32_t row = blockIdx.x / s.heads, head = blockIdx.x % s.heads, dim = s.head_dim;
  const std::uint32_t kv_width = s.kv_heads * dim;
  const RowPlace place = rows[row];
  const std::uint32_t room = room_of(place, s);
  const float* keys = place.behind(before) + head / (s.heads / s.kv_heads) * dim;
  const float* values = s.latent > 0 ? keys : keys + std::uint64_t{room} * kv_width;
  const std::uint32_t value_dim = s.latent > 0 ? s.latent : dim;
  const float* q = qkv + row * row_width(s) + head * dim;
  const float scale = s.scale > 0 ? s.scale : 1.0F / sqrtf(static_cast<float>(dim)),
              infinity = __uint_as_float(0x7f800000U);

  float4 query[parts];
#pragma unroll
  for (std::uint32_t p = 0; p < parts; ++p) query[p] = four_of(q, p * lanes + in_team * 4, dim);
  float largest = -infinity, sum = 0;  // the sum is the lane's own
  float mixed[parts] = {};             // elements `lane`, `lane` + 32, ...
  const std::uint32_t seen = place.position + 1, recent = s.window > 0 && seen > s.window ? seen - s.window : 0;
  const std::uint32_t begin = s.chunk > 0 ? place.position - place.position % s.chunk : recent;
  for (std::uint32_t first = begin + warp * lanes; first <= place.position; first += threads) {
    const std::uint32_t count = place.position + 1 - first < lanes ? place.position + 1 - first : lanes;
    const std::uint32_t place_of_first = wraps ? first % room : first, to_end = room - place_of_first;
    const auto place_of = [&](std::uint32_t i) { return !wraps || i < to_end ? place_of_first + i : i - to_end; };
    float scores[team];  // partial sums of the positions lane / team + teams * i
#pragma unroll
    for (std::uint32_t i = 0; i < team; ++i) {
      const std::uint32_t position = i * teams + lane / team;
      scores[i] = 0;
      if (position >= count) continue;
      const float* key = keys + std::uint64_t{place_of(position)} * kv_width;
#pragma unroll
      for (std::uint32_t p = 0; p < parts; ++p) {
        const float4 k = four_of(key, p * lanes + in_team * 4, dim);
        scores[i] = fmaf(query[p].x, k.x, scores[i]);
        scores[i] = fmaf(query[p].y, k.y, scores[i]);
        scores[i] = fmaf(query[p].z, k.z, scores[i]);
        scores[i] = fmaf(query[p].w, k.w, scores[i]);
      }
    }
    // Each lane gives half of its sums away and adds what it receives to the other half, until one complete score is left.
#pragma unroll
    for (std::uint32_t half = team / 2; half > 0; half /= 2) {
      const bool upper = (in_team & half) != 0;
#pragma unroll
      for (std::uint32_t i = 0; i < half; ++i) {
        const float given = upper ? scores[i] : scores[i + half], kept = upper ? scores[i + half] : scores[i];
        scores[i] = kept + __shfl_xor_sync(every_lane, given, static_cast<int>(half));
      }
    }
    const std::uint32_t position = in_team * teams + lane / team;
    const float score = position < count ? scores[0] * scale : -infinity;
    float best = cub::WarpReduce<float>(reduce[warp]).Reduce(score, Larger());
    best = Larger()(largest, __shfl_sync(every_lane, best, 0));
    const float faded = expf(largest - best), weight = expf(score - best);
    largest = best;
    sum = sum * faded + weight;
    shared_weights[warp][position] = weight;
    __syncwarp();
#pragma unroll
    for (std::uint32_t p = 0; p < parts; ++p) mixed[p] *= faded;
    const float* value = values + std::uint64_t{place_of_first} * kv_width;
#pragma unroll 8
    for (std::uint32_t i = 0; i < count; ++i) {
      const float w = shared_weights[warp][i];
      if (wraps && i == to_end) value = values - std::uint64_t{to_end} * kv_width;
#pragma unroll
      for (std::uint32_t p = 0; p < parts; ++p) {
        const std::uint32_t element = p * lanes + lane;
        if (element < value_dim) mixed[p] = fmaf(w, value[std::uint64_t{i} * kv_width + element], mixed[p]);
      }
    }
    __syncwarp();  // the weights are used again
  }
#pragma unroll
  for (std::uint32_t p = 0; p < parts; ++p) shared_out[warp][p * lanes + lane] = mixed[p];
  sum = cub::WarpReduce<float>(reduce_sum[warp]).Sum(sum);
  if (lane == 0) {
    shared_largest[warp] = largest;
    shared_sum[warp] = sum;
  }
  __syncthreads();
  float all_largest = shared_largest[0], all_sum = 0;  // the first warp has seen a position
  for (std::uint32_t w = 1; w < warps; ++w) all_largest = Larger()(shared_largest[w], all_largest);
  if (s.sinks != nullptr) {
    all_largest = Larger()(s.sinks[head], all_largest);
    all_sum = expf(s.sinks[head] - all_largest);
  }
  float share[warps];
#pragma unroll
  for (std::uint32_t w = 0; w < warps; ++w) {
    share[w] = expf(shared_largest[w] - all_largest);
    all_sum = fmaf(share[w], shared_sum[w], all_sum);
  }
  for (std::uint32_t element = threadIdx.x; element < value_dim; element += threads) {
    float result = 0;
#pragma unroll
    for (std::uint32_t w = 0; w < warps; ++w) result = fmaf(share[w], shared_out[w][element], result);
    out[(std::uint64_t{row} * s.heads + head) * value_dim + element] = result / all_sum;
  }
}

/// The kernel for heads of so many parts.
template <bool wraps>
auto* kernel_for(std::uint32_t parts) {
  if (parts == 1) return attention_kernel<1, wraps>;
  if (parts == 2) return attention_kernel<2, wraps>;
  if (parts <= 4) return attention_kernel<4, wraps>;
  if (parts <= 8) return attention_kernel<8, wraps>;
  if (wraps || parts <= most_head_dim / lanes) return attention_kernel<most_head_dim / lanes, wraps>;
  return attention_kernel<most_latent_dim / lanes, false>;  // latent vectors: their cache never wraps
}

void check(const AttentionShape& s) {
  const std::uint32_t most = s.latent > 0 ? most_latent_dim : most_head_dim;
  if (s.head_dim == 0 || s.head_dim > most || s.head_dim % 2 != 0) {
    refuse("heads of " + std::to_string(s.head_dim) + " numbers, expected an even number up to " +
           std::to_string(most));
  }
  if (s.latent > s.head_dim) refuse("values of more numbers than their keys");
  if (s.latent > 0 && s.recent) refuse("latent vectors of recent positions alone");
  if (s.kv_heads == 0 || s.heads == 0 || s.heads % s.kv_heads != 0) {
    refuse(std::to_string(s.heads) + " heads cannot share " + std::to_string(s.kv_heads) + " of keys and values");
  }
}

}  // namespace

void prepare_and_store(cudaStream_t stream, float* qkv, const Preparation& p, const RowPlace* rows, std::uint32_t n,
                       const CacheNumbers& before, const AttentionShape& shape) {
  check(shape);
  if (shape.latent > 0) refuse("latent vectors: place_latent prepares them");
  if (p.turned > shape.head_dim || p.turned % 2 != 0) {
    refuse(std::to_string(p.turned) + " columns that turn, expected an even number up to " +
           std::to_string(shape.head_dim));
  }
  if (n == 0) return;
  launch_early("prepare_kernel", stream, dim3(n, shares(shape.heads + 2 * shape.kv_heads, warps)), threads,
               prepare_kernel, qkv, p, rows, before, shape);
}

void attention(cudaStream_t stream, const float* qkv, const RowPlace* rows, std::uint32_t n, const CacheNumbers& before,
               const AttentionShape& shape, float* out) {
  check(shape);
  if (n == 0) return;
  const std::uint32_t parts = shares(shape.head_dim, lanes);
  auto* kernel = shape.recent ? kernel_for<true>(parts) : kernel_for<false>(parts);
  launch_early("attention_kernel", stream, dim3(n * shape.heads), threads, kernel, qkv, rows, before, shape, out);
}

}  // namespace ferry::engine::cuda
