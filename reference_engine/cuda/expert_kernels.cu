// Routed experts, straight from their stored form or by way of floats.
#include "by_blas.hpp"
#include "kernels.hpp"
#include "products.hpp"

namespace ferry::engine::cuda {
namespace {

using namespace part;

/// One task of a group for each row of blocks. Every matrix is behind the task's own address.
struct ExpertJob {
  Place place;  ///< of the first matrix
  const ExpertTask* tasks = nullptr;
  const std::uint32_t* assignments = nullptr;
  ExpertTask task;

  __device__ void start() { task = tasks[blockIdx.y]; }
  __device__ __host__ std::uint32_t outputs() const { return place.rows; }
  __device__ std::uint32_t inputs() const { return task.rows; }
};

/// activated = silu(gate x) * up x.
struct GateUpJob : ExpertJob {
  static constexpr std::uint32_t rows = 2;
  std::uint64_t up_at = 0;  ///< bytes from the gate's matrix to the other
  std::uint32_t top_k = 0;
  const float* x = nullptr;    ///< [n, hidden]
  float* activated = nullptr;  ///< [n * top_k, width]

  __device__ Row row(std::uint32_t output, std::uint32_t i) const {
    return row_of(place, task.weights + i * up_at, output);
  }
  __device__ const float* input(std::uint32_t i, std::uint32_t& number) const {
    number = assignments[task.first + i];
    return x + std::uint64_t{number / top_k} * place.columns;
  }
  __device__ void emit(std::uint32_t output, std::uint32_t number, const float (&sums)[2]) const {
    activated[std::uint64_t{number} * place.rows + output] = sums[0] / (1.0F + expf(-sums[0])) * sums[1];
  }
};

/// results = down activated.
struct DownJob : ExpertJob {
  static constexpr std::uint32_t rows = 1;
  const float* activated = nullptr;
  float* results = nullptr;  ///< [n * top_k, hidden]

  __device__ Row row(std::uint32_t output, std::uint32_t /*i*/) const { return row_of(place, task.weights, output); }
  __device__ const float* input(std::uint32_t i, std::uint32_t& number) const {
    number = assignments[task.first + i];
    return activated + std::uint64_t{number} * place.columns;
  }
  __device__ void emit(std::uint32_t output, std::uint32_t number, const float (&sums)[1]) const {
    results[std::uint64_t{number} * place.rows + output] = sums[0];
  }
};

PassThroughLayout plain(const ExpertShape& s, int part) {
  return {part == 2 ? s.hidden : s.width, part == 2 ? s.width : s.hidden, s.type};
}
PackedLayout packed(const ExpertShape& s, Precision p, int part) {
  return {part == 2 ? s.hidden : s.width, part == 2 ? s.width : s.hidden, code_bits(p), s.group};
}

void check(const ExpertShape& s, Precision p) {
  if (p == Precision::skip) refuse("experts that are skipped have no weights");
  if (s.hidden == 0 || s.width == 0) {
    refuse("an expert of hidden size " + std::to_string(s.hidden) + " and width " + std::to_string(s.width));
  }
  if (p != Precision::full && s.group != 32 && s.group != 64 && s.group != 128) {
    refuse("groups of " + std::to_string(s.group) + " weights, expected 32, 64 or 128");
  }
}

template <class Weights, class Layout>
void launch_experts(cudaStream_t stream, const Layout& wide, const Layout& narrow, const ExpertGroup& group,
                    const float* x, float* activated, float* results) {
  constexpr std::uint32_t unit_bytes = Weights::words * 4;
  GateUpJob first;
  first.place = place_of(wide, 0);
  first.tasks = group.tasks;
  first.assignments = group.assignments;
  first.up_at = wide.bytes();
  first.top_k = group.top_k;
  first.x = x;
  first.activated = activated;
  launch_job<Weights>("experts, gate and up", stream, first, first.place.aligned(unit_bytes), group.count,
                      group.most_rows);
  DownJob second;
  second.place = place_of(narrow, 2 * wide.bytes());
  second.tasks = group.tasks;
  second.assignments = group.assignments;
  second.activated = activated;
  second.results = results;
  launch_job<Weights>("experts, down", stream, second, second.place.aligned(unit_bytes), group.count, group.most_rows);
}

constexpr std::uint32_t copy_threads = 256;

/// A block brings one row of a task: of the inputs in, or of the results out.
__global__ void gather(const float* x, const std::uint32_t* assignments, std::uint32_t top_k, std::uint32_t hidden,
                       float* to) {
  const float* from = x + std::uint64_t{assignments[blockIdx.x] / top_k} * hidden;
  to += std::uint64_t{blockIdx.x} * hidden;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += copy_threads) to[i] = from[i];
}
__global__ void scatter(const float* from, const std::uint32_t* assignments, std::uint32_t hidden, float* results) {
  from += std::uint64_t{blockIdx.x} * hidden;
  float* to = results + std::uint64_t{assignments[blockIdx.x]} * hidden;
  for (std::uint32_t i = threadIdx.x; i < hidden; i += copy_threads) to[i] = from[i];
}

}  // namespace

void experts(const Context& context, const ExpertShape& s, Precision p, const ExpertGroup& group, const float* x,
             float* activated, float* results) {
  check(s, p);
  if (group.count == 0 || group.most_rows == 0) return;
  auto run = [&](auto weights, const auto& wide, const auto& narrow) {
    launch_experts<decltype(weights)>(context.stream, wide, narrow, group, x, activated, results);
  };
  if (p == Precision::full) {
    const PassThroughLayout wide = plain(s, 0), narrow = plain(s, 2);
    if (s.type == FloatType::bf16) {
      run(Plain<FloatType::bf16>{}, wide, narrow);
    } else if (s.type == FloatType::f16) {
      run(Plain<FloatType::f16>{}, wide, narrow);
    } else {
      run(Plain<FloatType::f32>{}, wide, narrow);
    }
    return;
  }
  const PackedLayout wide = packed(s, p, 0), narrow = packed(s, p, 2);
  if (p == Precision::int8) {
    run(Packed<8>{}, wide, narrow);
  } else if (p == Precision::int4) {
    run(Packed<4>{}, wide, narrow);
  } else {
    run(Packed<2>{}, wide, narrow);
  }
}

void expert_by_blas(const Context& context, const ExpertShape& s, Precision p, const ExpertTask& task,
                    const std::uint32_t* assignments, std::uint32_t top_k, const float* x, const ExpertScratch& scratch,
                    float* results) {
  check(s, p);
  const std::uint32_t n = task.rows;
  if (n == 0) return;
  const std::uint32_t* rows = assignments + task.first;
  launch("gather", context.stream, dim3(n), copy_threads, gather, x, rows, top_k, s.hidden, scratch.gathered);
  auto run = [&](const auto& wide, const auto& narrow) {
    multiply_by_blas(context, scratch.gathered, n, wide, task.weights, false, scratch.gate);
    multiply_by_blas(context, scratch.gathered, n, wide, task.weights + wide.bytes(), false, scratch.up);
    swiglu(context.stream, scratch.gate, scratch.up, std::uint64_t{n} * s.width);
    multiply_by_blas(context, scratch.gate, n, narrow, task.weights + 2 * wide.bytes(), false, scratch.gathered);
  };
  if (p == Precision::full) {
    run(plain(s, 0), plain(s, 2));
  } else {
    run(packed(s, p, 0), packed(s, p, 2));
  }
  launch("scatter", context.stream, dim3(n), copy_threads, scatter, scratch.gathered, rows, s.hidden, results);
}

}  // namespace ferry::engine::cuda
