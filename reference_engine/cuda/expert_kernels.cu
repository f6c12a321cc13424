// Routed experts, straight from their stored form or by way of floats.
#include <numeric>
#include <type_traits>
#include <utility>

#include "cuda/by_blas.hpp"
#include "cuda/kernels.hpp"
#include "cuda/products.hpp"
#include "cuda/vectors.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

/// One task of a group. Its matrices lie at offsets from the task's address.
struct ExpertJob {
  Place place;  ///< of the first matrix
  const std::uint32_t* assignments = nullptr;
  ExpertTask task;
  std::uint64_t biases_at = 0, scale_at = 0;  ///< bytes from the task's address; 0: there are none

  __device__ std::uint32_t outputs() const { return place.rows; }
  __device__ std::uint32_t inputs() const { return task.rows; }
};

// Not inlined: biases and weights would slow down the loops of families that have neither.
__device__ __noinline__ float activated_after(const Activation& a, const std::byte* biases, float weight,
                                              std::uint32_t output, std::uint32_t width, float gate, float up) {
  if (biases != nullptr) {
    gate += float_at(biases, output);
    up += float_at(biases, std::uint64_t{width} + output);
  }
  return activated(a, weight * gate, weight * up);
}
__device__ __noinline__ float given_after(const std::byte* biases, const std::byte* scale, std::uint32_t i, float sum) {
  if (biases != nullptr) sum += float_at(biases, i);
  return scale == nullptr ? sum : sum * float_at(scale, 0);
}

/// activated = activation(gate x, up x).
struct GateUpJob : ExpertJob {
  static constexpr std::uint32_t rows = 2;
  std::uint64_t up_at = 0;  ///< bytes from the gate's matrix to up's
  std::uint32_t top_k = 0;
  const float* x = nullptr;  ///< [n, hidden]
  float* to = nullptr;       ///< [n * top_k, width]
  Activation activation;
  const float* weights = nullptr;  ///< by assignment, or null

  __device__ Row row(std::uint32_t output, std::uint32_t i) const {
    return row_of(place, task.weights + i * up_at, output);
  }
  __device__ const float* input(std::uint32_t i, std::uint32_t& number) const {
    number = assignments[task.first + i];
    return x + std::uint64_t{number / top_k} * place.columns;
  }
  __device__ void ready() const {}
  __device__ void emit(std::uint32_t output, std::uint32_t number, const float (&sums)[2]) const {
    float& made = to[std::uint64_t{number} * place.rows + output];
    if (biases_at == 0 && !activation.clamped && !activation.gelu && weights == nullptr) {
      made = sums[0] / (1.0F + expf(-sums[0])) * sums[1];
    } else {
      made = activated_after(activation, biases_at == 0 ? nullptr : task.weights + biases_at,
                             weights == nullptr ? 1 : weights[number], output, place.rows, sums[0], sums[1]);
    }
  }
};

/// Waits until other blocks have counted `made` up to `all`. What they wrote before that can then be read.
__device__ __forceinline__ void wait_for(const unsigned* made, std::uint32_t all) {
  if (threadIdx.x == 0) {
    const volatile unsigned* now = made;
    while (*now < all) {
    }
    __threadfence();
  }
  __syncthreads();
}

/// results = down activated.
struct DownJob : ExpertJob {
  static constexpr std::uint32_t rows = 1;
  const float* activated = nullptr;
  float* results = nullptr;        ///< [n * top_k, hidden]
  const unsigned* made = nullptr;  ///< how many blocks have written their share of the task's activations
  std::uint32_t makers = 0;        ///< how many blocks write such shares

  __device__ Row row(std::uint32_t output, std::uint32_t /*i*/) const { return row_of(place, task.weights, output); }
  __device__ const float* input(std::uint32_t i, std::uint32_t& number) const {
    number = assignments[task.first + i];
    return activated + std::uint64_t{number} * place.columns;
  }
  __device__ void ready() const { wait_for(made, makers); }
  __device__ void emit(std::uint32_t output, std::uint32_t number, const float (&sums)[1]) const {
    float& made = results[std::uint64_t{number} * place.rows + output];
    made = biases_at + scale_at == 0
               ? sums[0]
               : given_after(biases_at == 0 ? nullptr : task.weights + biases_at,
                             scale_at == 0 ? nullptr : task.weights + scale_at, 2 * place.columns + output, sums[0]);
  }
};

/// Where an expert's matrices lie at one precision.
struct ExpertPlaces {
  Place gate, down;
  std::uint64_t up_at = 0;  ///< bytes from the gate's matrix to up's
  std::uint64_t biases_at = 0, scale_at = 0;
};

/// Tasks of a group, as a kernel has them.
struct GroupJob {
  ExpertPlaces at[precision_count];
  std::uint32_t count = 0;     ///< of tasks
  std::uint32_t ends[3] = {};  ///< where tasks in INT2 end, then those in INT4, then those in INT8
  FloatType type = FloatType::bf16;
  StoredType wide, narrow;  ///< for `AnyStored` instead of `type`: of gate and up, and of down
  Activation activation;
  const float* weights = nullptr;
  const ExpertTask* tasks = nullptr;
  const std::uint32_t* assignments = nullptr;
  std::uint32_t top_k = 0;
  unsigned* progress = nullptr;
  const float* x = nullptr;
  float *activated = nullptr, *results = nullptr;
  std::uint32_t up_blocks = 0, down_blocks = 0;  ///< of a task
};

/// For a kernel whose tasks may be of all precisions.
struct AnyWeights {};

/// For a kernel whose tasks are all in the checkpoint's own types, which it gets as arguments.
struct AnyStored {};

/// Both products of all tasks. Blocks draw their work in the order in which they start: first gate and up of every task,
/// then down. So a block that waits for the activations of its task waits only for blocks that are already running.
template <class Weights, std::uint32_t up_rows, std::uint32_t down_rows, std::uint32_t most, bool aligned>
__global__ void __launch_bounds__(product_threads, 2) experts_kernel(GroupJob g) {
  __shared__ Stage<stage_floats(most)> stage;
  __shared__ std::uint32_t drawn;
  unsigned *const started = g.progress, *const ended = started + 1;
  let_next_begin();
  if (threadIdx.x == 0) drawn = atomicAdd(started, 1U);
  __syncthreads();
  const std::uint32_t ups = g.count * g.up_blocks;
  const bool down = drawn >= ups;
  const std::uint32_t number = down ? drawn - ups : drawn, blocks = down ? g.down_blocks : g.up_blocks;
  const std::uint32_t index = number / blocks;
  const ExpertTask task = g.tasks[index];

  static_cast<void>(stage);  // else compilers call it unused if only `with_stored` calls `run`
  auto run = [&](auto weights) {
    using Stored = decltype(weights);
    const ExpertPlaces& at = g.at[static_cast<int>(Stored::precision)];
    if (down) {
      const DownJob job{{at.down, g.assignments, task, at.biases_at, at.scale_at},
                        g.activated,
                        g.results,
                        started + 2 + index,
                        g.up_blocks};
      run_job<Stored, down_rows, most, aligned>(stage, job, number % blocks, blocks);
    } else {
      const GateUpJob job{
          {at.gate, g.assignments, task, at.biases_at}, at.up_at, g.top_k, g.x, g.activated, g.activation, g.weights};
      run_job<Stored, up_rows, most, aligned>(stage, job, number % blocks, blocks);
    }
  };
  if constexpr (std::is_same_v<Weights, AnyStored>) {
    with_stored(down ? g.narrow : g.wide, run);
  } else if constexpr (!std::is_same_v<Weights, AnyWeights>) {
    run(Weights{});
  } else if (index < g.ends[0]) {
    run(Packed<2>{});
  } else if (index < g.ends[1]) {
    run(Packed<4>{});
  } else if (index < g.ends[2]) {
    run(Packed<8>{});
  } else if (g.type == FloatType::bf16) {
    run(Plain<FloatType::bf16>{});
  } else if (g.type == FloatType::f16) {
    run(Plain<FloatType::f16>{});
  } else {
    run(Plain<FloatType::f32>{});
  }

  __threadfence();  // what this block wrote comes before its mark
  __syncthreads();
  if (threadIdx.x != 0) return;
  // `drawn` is read again from shared memory, which saves registers in between.
  if (drawn < ups) atomicAdd(started + 2 + drawn / g.up_blocks, 1U);
  if (atomicAdd(ended, 1U) == gridDim.x - 1) {  // all others have read what they wait for
    __threadfence();
    for (std::uint32_t i = 0; i < 2 + g.count; ++i) started[i] = 0;
  }
}

/// The layout of gate and up, or of down.
PassThroughLayout plain(const ExpertShape& s, int part) {
  return {part == 2 ? s.hidden : s.width, part == 2 ? s.width : s.hidden, part == 2 ? s.down.number : s.type.number};
}
BlockLayout in_blocks(const ExpertShape& s, int part) {
  return {part == 2 ? s.hidden : s.width, part == 2 ? s.width : s.hidden, part == 2 ? s.down.block : s.type.block};
}
/// Calls `use` with the layout of the part's stored type.
template <class Use>
void with_layout(const ExpertShape& s, int part, const Use& use) {
  if (part == 2 ? s.down.blocks : s.type.blocks) return use(in_blocks(s, part));
  use(plain(s, part));
}
std::uint64_t wide_bytes(const ExpertShape& s) {
  return s.type.blocks ? in_blocks(s, 0).bytes() : plain(s, 0).bytes();
}
/// Whether all matrices hold plain numbers of one type.
bool numbers(const ExpertShape& s) {
  return !s.type.blocks && s.down == s.type;
}

PackedLayout packed(const ExpertShape& s, Precision p, int part) {
  return {part == 2 ? s.hidden : s.width, part == 2 ? s.width : s.hidden, code_bits(p), s.group};
}

/// Bytes of an expert's matrices.
std::uint64_t matrix_bytes(const ExpertShape& s, Precision p) {
  if (p != Precision::full) return 2 * packed(s, p, 0).bytes() + packed(s, p, 2).bytes();
  std::uint64_t at = 2 * wide_bytes(s);
  with_layout(s, 2, [&](const auto& narrow) { at += narrow.bytes(); });
  return at;
}

/// Bytes from an expert's address to its biases, and to its scale; 0: it has none.
std::uint64_t biases_at(const ExpertShape& s, Precision p) {
  return s.biased ? matrix_bytes(s, p) : 0;
}
std::uint64_t scale_at(const ExpertShape& s, Precision p) {
  const std::uint64_t biases = s.biased ? (std::uint64_t{2} * s.width + s.hidden) * sizeof(float) : 0;
  return s.scaled ? matrix_bytes(s, p) + biases : 0;
}

void check(const ExpertShape& s) {
  if (s.hidden == 0 || s.width == 0) {
    refuse("an expert of hidden size " + std::to_string(s.hidden) + " and width " + std::to_string(s.width));
  }
  if (s.group != 32 && s.group != 64 && s.group != 128) {
    refuse("groups of " + std::to_string(s.group) + " weights, expected 32, 64 or 128");
  }
  if (s.type.blocks) in_blocks(s, 0).validate();
  if (s.down.blocks) in_blocks(s, 2).validate();
  with_stored(s.down, [&](auto weights) {
    if (2 * wide_bytes(s) % decltype(weights)::alignment == 0) return;
    refuse("a matrix of down that begins " + std::to_string(2 * wide_bytes(s)) + " bytes behind the gate's");
  });
}

constexpr std::uint32_t copy_threads = 256;

/// A block copies one row of a task: `gather` an input, `scatter` a result.
__global__ void gather(const float* x, const std::uint32_t* assignments, std::uint32_t top_k, std::uint32_t hidden,
                       float* to) {
  const float* from = x + std::uint64_t{assignments[blockIdx.x] / top_k} * hidden;
  to += std::uint64_t{blockIdx.x} * hidden;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += copy_threads) to[i] = from[i];
}
__global__ void scatter(const float* from, const std::uint32_t* assignments, std::uint32_t hidden,
                        const std::byte* biases, const std::byte* scale, float* results) {
  from += std::uint64_t{blockIdx.x} * hidden;
  float* to = results + std::uint64_t{assignments[blockIdx.x]} * hidden;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += copy_threads) to[i] = given_after(biases, scale, i, from[i]);
}

}  // namespace

void experts(const Context& context, const ExpertShape& s, const ExpertGroup& group, const float* x, float* activated,
             float* results) {
  check(s);
  if (group.counts[0] != 0) refuse("experts that are skipped have no weights");
  if (group.most_rows == 0) return;
  GroupJob g;
  bool aligned = true;
  auto place = [&](Precision p, const auto& wide, const auto& narrow, std::uint32_t unit_bytes) {
    ExpertPlaces& at = g.at[static_cast<int>(p)];
    at = {place_of(wide, 0), place_of(narrow, 2 * wide.bytes()), wide.bytes(), biases_at(s, p), scale_at(s, p)};
    aligned = aligned && at.gate.aligned(unit_bytes) && at.down.aligned(unit_bytes) && at.up_at % unit_bytes == 0;
  };
  if (numbers(s)) {
    place(Precision::full, plain(s, 0), plain(s, 2), 16);
  } else {
    ExpertPlaces& at = g.at[static_cast<int>(Precision::full)];
    at.up_at = wide_bytes(s);
    with_layout(s, 0, [&](const auto& wide) { at.gate = place_of(wide, 0); });
    with_layout(s, 2, [&](const auto& narrow) { at.down = place_of(narrow, 2 * at.up_at); });
    at.biases_at = biases_at(s, Precision::full);
    at.scale_at = scale_at(s, Precision::full);
    g.wide = s.type;
    g.narrow = s.down;
  }
  for (const Precision p : {Precision::int8, Precision::int4, Precision::int2}) {
    place(p, packed(s, p, 0), packed(s, p, 2), p == Precision::int2 ? 8 : 16);
  }
  g.type = s.type.number;
  g.activation = s.activation;
  g.weights = group.weights;
  g.assignments = group.assignments;
  g.top_k = group.top_k;
  g.progress = group.progress;
  g.x = x;
  g.activated = activated;
  g.results = results;

  auto with = [&](auto* kernel, std::uint32_t up_rows, std::uint32_t down_rows, std::uint32_t most) {
    const std::uint32_t up = shares(s.width, product_warps * up_rows / 2);
    const std::uint32_t down = shares(s.hidden, product_warps * down_rows);
    const std::uint64_t all = std::uint64_t{g.count} * (up + down);
    g.up_blocks = blocks_for(up, all, s.hidden, most);
    g.down_blocks = blocks_for(down, all, s.width, most);
    launch("experts_kernel", context.stream, dim3(g.count * (g.up_blocks + g.down_blocks)), product_threads, kernel, g);
  };
  auto launch_tasks = [&](auto* several_rows, const ExpertTask* tasks, const auto& counts) {
    g.tasks = tasks;
    g.count = 0;
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      g.count += counts[p];
      if (p <= 3) g.ends[p - 1] = g.count;
    }
    if (g.count == 0) return;
    auto many = [&](std::uint32_t outputs, std::uint32_t of_a_warp) {
      return std::uint64_t{g.count} * shares(outputs, product_warps * of_a_warp) >= enough_blocks;
    };
    if (!aligned) {
      with(experts_kernel<AnyWeights, 2, 2, 4, false>, 2, 2, 4);
    } else if (group.most_rows > 1) {
      with(several_rows, 4, 4, 8);
    } else if (!many(s.width, 2)) {
      with(experts_kernel<AnyWeights, 2, 2, 1, true>, 2, 2, 1);
    } else if (!many(s.hidden, 4)) {
      with(experts_kernel<AnyWeights, 4, 2, 1, true>, 4, 2, 1);
    } else {
      with(experts_kernel<AnyWeights, 4, 4, 1, true>, 4, 4, 1);
    }
  };
  if (!numbers(s)) {  // packed experts come first in the group
    std::array<std::uint32_t, precision_count> others = group.counts;
    const std::uint32_t own = std::exchange(others[static_cast<std::size_t>(Precision::full)], 0);
    if (own < std::accumulate(group.counts.begin(), group.counts.end(), 0U)) {
      ExpertGroup rest = group;
      rest.counts = others;
      ExpertShape same = s;
      same.type = same.down = FloatType::bf16;
      experts(context, same, rest, x, activated, results);
    }
    if (own == 0) return;
    g.tasks = group.tasks + std::accumulate(others.begin(), others.end(), 0U);
    g.count = own;
    if (group.most_rows == 1) return with(experts_kernel<AnyStored, 2, 2, 1, false>, 2, 2, 1);
    return with(experts_kernel<AnyStored, 2, 2, 4, false>, 2, 2, 4);
  }
  // Tasks of several rows need all registers, so that each precision gets a kernel of its own.
  auto* full = s.type == FloatType::bf16  ? experts_kernel<Plain<FloatType::bf16>, 4, 4, 8, true>
               : s.type == FloatType::f16 ? experts_kernel<Plain<FloatType::f16>, 4, 4, 8, true>
                                          : experts_kernel<Plain<FloatType::f32>, 4, 4, 8, true>;
  if (!aligned || group.most_rows == 1) return launch_tasks(full, group.tasks, group.counts);
  const ExpertTask* tasks = group.tasks;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    std::array<std::uint32_t, precision_count> counts{};
    counts[p] = group.counts[p];
    launch_tasks(p == static_cast<std::uint32_t>(Precision::int2)   ? experts_kernel<Packed<2>, 4, 4, 8, true>
                 : p == static_cast<std::uint32_t>(Precision::int4) ? experts_kernel<Packed<4>, 4, 4, 8, true>
                 : p == static_cast<std::uint32_t>(Precision::int8) ? experts_kernel<Packed<8>, 4, 4, 8, true>
                                                                    : full,
                 tasks, counts);
    tasks += counts[p];
  }
}

void expert_by_blas(const Context& context, const ExpertShape& s, Precision p, const ExpertTask& task,
                    const std::uint32_t* assignments, std::uint32_t top_k, const float* weights, const float* x,
                    const ExpertScratch& scratch, float* results) {
  check(s);
  if (p == Precision::skip) refuse("an expert that is skipped has no weights");
  const std::uint32_t n = task.rows;
  if (n == 0) return;
  const std::uint32_t* rows = assignments + task.first;
  launch("gather", context.stream, dim3(n), copy_threads, gather, x, rows, top_k, s.hidden, scratch.gathered);
  const std::byte* biases = s.biased ? task.weights + biases_at(s, p) : nullptr;
  auto run = [&](const auto& wide) {
    multiply_by_blas(context, scratch.gathered, n, wide, task.weights, false, scratch.gate);
    multiply_by_blas(context, scratch.gathered, n, wide, task.weights + wide.bytes(), false, scratch.up);
    activate(context.stream, scratch.gate, scratch.up, n, s.width, s.activation, {biases, weights}, rows);
  };
  auto run_down = [&](const auto& narrow, std::uint64_t at) {
    multiply_by_blas(context, scratch.gate, n, narrow, task.weights + at, false, scratch.gathered);
  };
  if (p == Precision::full) {
    with_layout(s, 0, run);
    with_layout(s, 2, [&](const auto& narrow) { run_down(narrow, 2 * wide_bytes(s)); });
  } else {
    run(packed(s, p, 0));
    run_down(packed(s, p, 2), 2 * packed(s, p, 0).bytes());
  }
  launch("scatter", context.stream, dim3(n), copy_threads, scatter, scratch.gathered, rows, s.hidden,
         biases == nullptr ? nullptr : biases + 2 * std::uint64_t{s.width} * sizeof(float),
         s.scaled ? task.weights + scale_at(s, p) : nullptr, results);
}

}  // namespace ferry::engine::cuda
