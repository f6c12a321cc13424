#include <algorithm>

#include "cuda/by_blas.hpp"
#include "cuda/launch.hpp"
#include "cuda/products.hpp"

namespace ferry::engine::cuda::part {
namespace {

constexpr std::uint32_t expand_threads = 256;

/// Expands rows of a matrix, from `first` on, to floats [rows, columns]. A block takes a row.
template <FloatType type>
__global__ void expand_plain(PassThroughLayout m, const std::byte* weights, std::uint32_t first, float* to) {
  constexpr std::uint32_t bytes = type == FloatType::f32 ? 4 : 2;
  const std::byte* row = weights + (std::uint64_t{first} + blockIdx.x) * m.columns * bytes;
  to += std::uint64_t{blockIdx.x} * m.columns;
  for (std::uint32_t c = threadIdx.x; c < m.columns; c += expand_threads) {
    if constexpr (type == FloatType::f32) {
      to[c] = reinterpret_cast<const float*>(row)[c];
    } else {
      const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[c];
      to[c] = type == FloatType::bf16 ? ferry::detail::widen_bf16(bits) : ferry::detail::widen_f16(bits);
    }
  }
}

template <std::uint32_t bits>
__global__ void expand_packed(PackedLayout m, const std::byte* weights, std::uint32_t first, float* to) {
  const std::uint32_t row = first + blockIdx.x;
  const std::byte* codes = weights + m.codes_at(row, 0);
  const auto* groups = reinterpret_cast<const float2*>(weights + m.group_at(row, 0));
  to += std::uint64_t{blockIdx.x} * m.columns;
  for (std::uint32_t c = threadIdx.x; c < m.columns; c += expand_threads) {
    const float2 group = groups[c / m.group];
    to[c] = fmaf(group.x, static_cast<float>(unpack_code(codes, c, bits)), group.y);
  }
}

template <class Weights>
__global__ void expand_blocks(BlockLayout m, const std::byte* weights, std::uint32_t first, float* to) {
  const std::byte* row = weights + (std::uint64_t{first} + blockIdx.x) * m.row_bytes();
  to += std::uint64_t{blockIdx.x} * m.columns;
  const std::uint32_t units = (m.columns + Weights::columns - 1) / Weights::columns;
  for (std::uint32_t unit = threadIdx.x; unit < units; unit += expand_threads) {
    const auto stored = Weights::load(row, unit);
#pragma unroll
    for (std::uint32_t q = 0; q < Weights::columns / 4; ++q) {
      float w[4];
      Weights::decode(stored, q, 0, w);
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t column = unit * Weights::columns + 4 * q + i;
        if (column < m.columns) to[column] = w[i];
      }
    }
  }
}

void expand(cudaStream_t stream, const BlockLayout& m, const std::byte* weights, std::uint32_t first,
            std::uint32_t rows, float* to) {
  with_blocks(m.type, [&](auto blocks) {
    launch("expand_blocks", stream, dim3(rows), expand_threads, expand_blocks<decltype(blocks)>, m, weights, first, to);
  });
}

void expand(cudaStream_t stream, const PassThroughLayout& m, const std::byte* weights, std::uint32_t first,
            std::uint32_t rows, float* to) {
  auto* kernel = m.type == FloatType::bf16  ? expand_plain<FloatType::bf16>
                 : m.type == FloatType::f16 ? expand_plain<FloatType::f16>
                                            : expand_plain<FloatType::f32>;
  launch("expand_plain", stream, dim3(rows), expand_threads, kernel, m, weights, first, to);
}

void expand(cudaStream_t stream, const PackedLayout& m, const std::byte* weights, std::uint32_t first,
            std::uint32_t rows, float* to) {
  auto* kernel = m.bits == 8 ? expand_packed<8> : m.bits == 4 ? expand_packed<4> : expand_packed<2>;
  launch("expand_packed", stream, dim3(rows), expand_threads, kernel, m, weights, first, to);
}

/// Computes output features `first` to `first + rows` - 1 of y [n, all], from their weights as floats [rows, columns].
void multiply(const Context& context, const float* x, std::uint32_t n, const float* w, std::uint32_t rows,
              std::uint32_t columns, bool add, float* y, std::uint32_t all, std::uint32_t first) {
  // cuBLAS is column-major: a row-major [n, all] is [all, n] to it.
  const float one = 1, before = add ? 1 : 0;
  const auto size = [](std::uint32_t i) { return static_cast<int>(i); };
  const cublasStatus_t status = cublasSgemm(context.blas, CUBLAS_OP_T, CUBLAS_OP_N, size(rows), size(n), size(columns),
                                            &one, w, size(columns), x, size(columns), &before, y + first, size(all));
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error("cublasSgemm of " + std::to_string(n) + " x " + std::to_string(columns) + " by " +
                           std::to_string(columns) + " x " + std::to_string(rows) + ": " +
                           cublasGetStatusString(status));
}

template <class Layout>
void multiply_by_tiles(const Context& context, const float* x, std::uint32_t n, const Layout& w,
                       const std::byte* weights, bool add, float* y) {
  const std::uint64_t fit = context.scratch_floats / w.columns;
  if (fit == 0) {
    refuse("scratch memory is " + std::to_string(context.scratch_floats) + " floats, a row of the weight needs " +
           std::to_string(w.columns));
  }
  for (std::uint32_t first = 0; first < w.rows;) {
    const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(fit, w.rows - first));
    expand(context.stream, w, weights, first, rows, context.scratch);
    multiply(context, x, n, context.scratch, rows, w.columns, add, y, w.rows, first);
    first += rows;
  }
}

}  // namespace

void multiply_by_blas(const Context& context, const float* x, std::uint32_t n, const PassThroughLayout& w,
                      const std::byte* weights, bool add, float* y) {
  if (w.type == FloatType::f32) {
    multiply(context, x, n, reinterpret_cast<const float*>(weights), w.rows, w.columns, add, y, w.rows, 0);
  } else {
    multiply_by_tiles(context, x, n, w, weights, add, y);
  }
}

void multiply_by_blas(const Context& context, const float* x, std::uint32_t n, const PackedLayout& w,
                      const std::byte* weights, bool add, float* y) {
  multiply_by_tiles(context, x, n, w, weights, add, y);
}

void multiply_by_blas(const Context& context, const float* x, std::uint32_t n, const BlockLayout& w,
                      const std::byte* weights, bool add, float* y) {
  multiply_by_tiles(context, x, n, w, weights, add, y);
}

}  // namespace ferry::engine::cuda::part
