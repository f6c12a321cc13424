// Dense kernels, for what every token needs: linear layers and gates.
#include "cuda/by_blas.hpp"
#include "cuda/kernels.hpp"
#include "cuda/products.hpp"
#include "ferry/detail/best.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

/// One matrix, whose rows are output features.
struct DenseJob {
  static constexpr std::uint32_t rows = 1;
  Place place;
  const std::byte* weights = nullptr;
  const float* x = nullptr;  ///< [n, columns]
  std::uint32_t n = 0;

  __device__ __host__ std::uint32_t outputs() const { return place.rows; }
  __device__ Row row(std::uint32_t output, std::uint32_t /*i*/) const { return row_of(place, weights, output); }
  __device__ std::uint32_t inputs() const { return n; }
  __device__ const float* input(std::uint32_t i, std::uint32_t& number) const {
    number = i;
    return x + std::uint64_t{i} * place.columns;
  }
  __device__ void ready() const { after_previous(); }  // no kernel writes weights
};

struct LinearJob : DenseJob {
  const float* bias = nullptr;
  float* y = nullptr;  ///< [n, rows]
  bool add = false;

  __device__ void emit(std::uint32_t output, std::uint32_t number, const float (&sums)[1]) const {
    float& to = y[std::uint64_t{number} * place.rows + output];
    const float result = bias == nullptr ? sums[0] : sums[0] + bias[output];
    to = add ? to + result : result;
  }
};

/// Several gates, whose logits go to [gates, n, experts].
struct GateJob : DenseJob {
  std::uint32_t experts = 0;
  float* logits = nullptr;

  __device__ void emit(std::uint32_t output, std::uint32_t number, const float (&sums)[1]) const {
    logits[(std::uint64_t{output / experts} * n + number) * experts + output % experts] = sums[0];
  }
};

template <class Weights, std::uint32_t rows, std::uint32_t most, bool aligned>
__global__ void __launch_bounds__(product_threads, 2) linear_kernel(LinearJob job) {
  __shared__ Stage<stage_floats(most)> stage;
  let_next_begin();
  run_job<Weights, rows, most, aligned>(stage, job, blockIdx.x, gridDim.x);
}

template <FloatType type>
void launch_linear(cudaStream_t stream, const LinearJob& job) {
  auto with = [&](auto* kernel, std::uint32_t rows, std::uint32_t most) {
    const std::uint32_t tiles = shares(job.place.rows, product_warps * rows);
    launch_early("linear_kernel", stream, dim3(blocks_for(tiles, tiles, job.place.columns, most)), product_threads,
                 kernel, job);
  };
  if (!job.place.aligned(16)) {
    with(linear_kernel<Plain<type>, 2, 4, false>, 2, 4);
  } else if (job.n > 1) {
    with(linear_kernel<Plain<type>, 4, 8, true>, 4, 8);
  } else if (shares(job.place.rows, product_warps * 4) >= enough_blocks) {
    with(linear_kernel<Plain<type>, 4, 1, true>, 4, 1);
  } else {
    with(linear_kernel<Plain<type>, 2, 1, true>, 2, 1);
  }
}

void launch_linear_blocks(cudaStream_t stream, BlockType type, const LinearJob& job) {
  with_blocks(type, [&](auto blocks) {
    using Weights = decltype(blocks);
    const std::uint32_t most = job.n == 1 ? 1 : 4, tiles = shares(job.place.rows, product_warps * 2);
    auto* kernel = most == 1 ? linear_kernel<Weights, 2, 1, false> : linear_kernel<Weights, 2, 4, false>;
    launch_early("linear_kernel", stream, dim3(blocks_for(tiles, tiles, job.place.columns, most)), product_threads,
                 kernel, job);
  });
}

template <class Job>
Job job_of(const DenseWeight& w, const float* x, std::uint32_t n) {
  Job job;
  job.place = w.type.blocks ? place_of(BlockLayout{w.rows, w.columns, w.type.block}, 0)
                            : place_of(PassThroughLayout{w.rows, w.columns, w.type.number}, 0);
  job.weights = w.data;
  job.x = x;
  job.n = n;
  return job;
}

__global__ void add_bias(float* y, const float* bias, std::uint32_t rows) {
  y += std::uint64_t{blockIdx.x} * rows;
  for (std::uint32_t i = threadIdx.x; i < rows; i += blockDim.x) y[i] += bias[i];
}

__global__ void copy_kernel(const float* from, std::uint32_t count, float* to) {
  const std::uint32_t i = blockIdx.x * product_threads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

/// Shared memory of a warp.
struct SoftmaxStage {
  typename cub::WarpReduce<float>::TempStorage largest, sum;
  typename cub::WarpReduce<std::int64_t>::TempStorage best;
};

/// The softmax of a row of logits, and the k best scores of it unless `best` is null. By one warp.
__device__ void softmax(SoftmaxStage& stage, const volatile float* logits, float* row, std::uint32_t experts,
                        std::uint32_t k, std::uint16_t* best) {
  constexpr std::uint32_t most = most_experts / lanes;  // experts of a lane
  const std::uint32_t lane = threadIdx.x % lanes;
  const float infinity = __uint_as_float(0x7f800000U);
  float score[most];  // of experts `lane`, `lane` + 32, ...
  float largest = -infinity;
#pragma unroll
  for (std::uint32_t i = 0; i < most; ++i) {
    score[i] = i * lanes + lane < experts ? logits[i * lanes + lane] : -infinity;
    largest = Larger()(score[i], largest);
  }
  largest = __shfl_sync(every_lane, cub::WarpReduce<float>(stage.largest).Reduce(largest, Larger()), 0);
  float sum = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < most; ++i) {
    score[i] = i * lanes + lane < experts ? expf(score[i] - largest) : 0;
    sum += score[i];
  }
  sum = __shfl_sync(every_lane, cub::WarpReduce<float>(stage.sum).Sum(sum), 0);
#pragma unroll
  for (std::uint32_t i = 0; i < most; ++i) {
    score[i] /= sum;
    if (i * lanes + lane < experts) row[i * lanes + lane] = score[i];
  }
  if (best == nullptr) return;
  std::uint32_t taken = 0;  // a bit for each of the lane's experts
  for (std::uint32_t rank = 0; rank < k; ++rank) {
    std::int64_t key = 0;  // less than any expert's
#pragma unroll
    for (std::uint32_t i = 0; i < most; ++i) {
      const std::uint32_t expert = i * lanes + lane;
      if (expert < experts && (taken >> i & 1U) == 0) key = Larger()(ferry::detail::rank_key(score[i], expert), key);
    }
    __syncwarp();  // the storage of the reduction is used again
    key = cub::WarpReduce<std::int64_t>(stage.best).Reduce(key, Larger());
    const std::uint32_t expert = __shfl_sync(every_lane, ferry::detail::index_of(key), 0);
    if (expert % lanes == lane) {
      taken |= 1U << expert / lanes;
      best[rank] = static_cast<std::uint16_t>(expert);
    }
  }
}

/// Softmax of all rows [gates * n], a warp each; the first n belong to the first gate. `logits` is volatile because other
/// blocks wrote some of them: they must not be read from this multiprocessor's cache.
__device__ void softmax_rows(const volatile float* logits, float* scores, std::uint32_t rows, std::uint32_t experts,
                             std::uint32_t n, std::uint32_t k, std::uint16_t* best, std::uint32_t first,
                             std::uint32_t step) {
  __shared__ SoftmaxStage stage[product_warps];
  for (std::uint32_t i = first; i < rows; i += step) {
    std::uint16_t* to = i < n && best != nullptr ? best + std::uint64_t{i} * k : nullptr;
    const std::uint64_t at = std::uint64_t{i} * experts;
    softmax(stage[threadIdx.x / lanes], logits + at, scores + at, experts, k, to);
    __syncwarp();
  }
}

__global__ void __launch_bounds__(product_threads)
    softmax_kernel(const float* logits, float* scores, std::uint32_t rows, std::uint32_t experts, std::uint32_t n,
                   std::uint32_t k, std::uint16_t* best) {
  const std::uint32_t warp = blockIdx.x * product_warps + threadIdx.x / lanes;
  softmax_rows(logits, scores, rows, experts, n, k, best, warp, gridDim.x * product_warps);
}

/// A warp makes one logit at a time, since gates are small. The last block to finish turns the logits into scores.
template <class Weights, std::uint32_t most, bool aligned>
__global__ void __launch_bounds__(product_threads, 2)
    gate_kernel(GateJob job, float* scores, unsigned* counter, std::uint32_t k, std::uint16_t* best) {
  __shared__ Stage<stage_floats(most)> stage;
  let_next_begin();
  run_job<Weights, 1, most, aligned>(stage, job, blockIdx.x, gridDim.x);
  if (counter == nullptr) return;
  __shared__ bool last;
  __threadfence();  // this block's logits come before its mark on the counter
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1U) == gridDim.x - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  softmax_rows(job.logits, scores, job.place.rows / job.experts * job.n, job.experts, job.n, k, best,
               threadIdx.x / lanes, product_warps);
}

template <FloatType type>
void launch_gate(cudaStream_t stream, const GateJob& job, float* scores, unsigned* counter, std::uint32_t k,
                 std::uint16_t* best) {
  auto* kernel = !job.place.aligned(16) ? gate_kernel<Plain<type>, 4, false>
                 : job.n > 1            ? gate_kernel<Plain<type>, 8, true>
                                        : gate_kernel<Plain<type>, 1, true>;
  launch_early("gate_kernel", stream, dim3(shares(job.place.rows, product_warps)), product_threads, kernel, job, scores,
               counter, k, best);
}

}  // namespace

void linear(const Context& context, const float* x, std::uint32_t n, const DenseWeight& w, const float* bias, bool add,
            float* y) {
  if (n == 0 || w.rows == 0) return;
  if (n > few_rows) {
    if (w.type.blocks) {
      multiply_by_blas(context, x, n, BlockLayout{w.rows, w.columns, w.type.block}, w.data, add, y);
    } else {
      multiply_by_blas(context, x, n, PassThroughLayout{w.rows, w.columns, w.type.number}, w.data, add, y);
    }
    if (bias != nullptr) launch("add_bias", context.stream, dim3(n), product_threads, add_bias, y, bias, w.rows);
    return;
  }
  auto job = job_of<LinearJob>(w, x, n);
  job.bias = bias;
  job.y = y;
  job.add = add;
  if (w.type.blocks) {
    launch_linear_blocks(context.stream, w.type.block, job);
  } else if (w.type == FloatType::bf16) {
    launch_linear<FloatType::bf16>(context.stream, job);
  } else if (w.type == FloatType::f16) {
    launch_linear<FloatType::f16>(context.stream, job);
  } else {
    launch_linear<FloatType::f32>(context.stream, job);
  }
}

void gate(const Context& context, const float* x, std::uint32_t n, const DenseWeight& gates, std::uint32_t count,
          float* logits, float* scores, unsigned* counter, std::uint32_t k, std::uint16_t* best) {
  if (count == 0 || gates.rows == 0 || gates.rows % count != 0) {
    refuse(std::to_string(gates.rows) + " rows of weights are not " + std::to_string(count) + " gates");
  }
  if (gates.type.blocks) refuse("gates in blocks");
  const std::uint32_t experts = gates.rows / count;
  if (experts > most_experts) {
    refuse("a gate of " + std::to_string(experts) + " experts, expected at most " + std::to_string(most_experts));
  }
  if (best != nullptr && k > experts) {
    refuse("the best " + std::to_string(k) + " of " + std::to_string(experts) + " experts");
  }
  if (n == 0) return;
  if (n > few_rows) {
    const PassThroughLayout one{experts, gates.columns, gates.type.number};
    for (std::uint32_t g = 0; g < count; ++g) {
      multiply_by_blas(context, x, n, one, gates.data + g * one.bytes(), false,
                       logits + std::uint64_t{g} * n * experts);
    }
    if (counter == nullptr) {
      const std::uint32_t numbers = count * n * experts;
      launch("copy_kernel", context.stream, dim3(shares(numbers, product_threads)), product_threads, copy_kernel,
             logits, numbers, scores);
      return;
    }
    launch("softmax_kernel", context.stream, dim3(shares(std::uint64_t{count} * n, product_warps)), product_threads,
           softmax_kernel, logits, scores, count * n, experts, n, k, best);
    return;
  }
  auto job = job_of<GateJob>(gates, x, n);
  job.experts = experts;
  job.logits = counter == nullptr ? scores : logits;
  if (gates.type == FloatType::bf16) {
    launch_gate<FloatType::bf16>(context.stream, job, scores, counter, k, best);
  } else if (gates.type == FloatType::f16) {
    launch_gate<FloatType::f16>(context.stream, job, scores, counter, k, best);
  } else {
    launch_gate<FloatType::f32>(context.stream, job, scores, counter, k, best);
  }
}

}  // namespace ferry::engine::cuda
