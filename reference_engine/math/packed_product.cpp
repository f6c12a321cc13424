#include "math/packed_product.hpp"

#include <algorithm>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "math/share_work.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t chunk_columns = ChunkedRows::chunk * Block::columns;

/// Columns `first` to `first + count - 1` of a row; `first` is a chunk's.
void unpack(const PackedLayout& w, const std::byte* weights, std::uint32_t row, std::uint32_t first,
            std::uint32_t count, float* to) {
  static_assert(chunk_columns % 128 == 0);  // whole groups
  for (std::uint32_t i = 0; i < count; i += w.group) unpack_group(w, weights, row, (first + i) / w.group, to + i);
}
void unpack(const PassThroughLayout& w, const std::byte* weights, std::uint32_t row, std::uint32_t first,
            std::uint32_t count, float* to) {
  unpack_columns(w, weights, row, first, count, to);
}

/// Not inlined: one code for all rows adds in one way.
[[gnu::noinline]] float dot(const Block* a, const Block* b, std::uint32_t blocks) {
  Block sums{};
  for (std::uint32_t n = 0; n < blocks; ++n) {
    for (std::uint32_t i = 0; i < Block::columns; ++i) sums.weights[i] += a[n].weights[i] * b[n].weights[i];
  }
  for (std::uint32_t half = Block::columns / 2; half > 0; half /= 2) {
    for (std::uint32_t i = 0; i < half; ++i) sums.weights[i] += sums.weights[i + half];
  }
  return sums.weights[0];
}

template <class Layout>
void add_product_portable(const Layout& w, const std::byte* weights, part::Outputs outputs, const ChunkedRows& x,
                          float* y) {
  Block chunk[ChunkedRows::chunk];
  for (std::uint32_t c = 0; c < x.chunks(); ++c) {
    const std::uint32_t first = c * chunk_columns, count = std::min(chunk_columns, w.columns - first);
    if (count < chunk_columns) std::memset(chunk, 0, sizeof(chunk));
    for (std::uint32_t out = outputs.first; out < outputs.end; ++out) {
      unpack(w, weights, out, first, count, chunk[0].weights);
      for (std::uint32_t row = 0; row < x.rows(); ++row) {
        y[std::size_t{row} * w.rows + out] += dot(chunk, x.at(c, row), x.blocks(c));
      }
    }
  }
}

#if defined(__x86_64__)
constexpr bool has_avx2_path = true;
#else
constexpr bool has_avx2_path = false;
#endif

template <class Layout>
void add_product(ProductPath path, const Layout& w, const std::byte* weights, part::Outputs outputs,
                 const ChunkedRows& x, float* y) {
  if constexpr (has_avx2_path) {
    if (path == ProductPath::avx2) return part::add_product_avx2(w, weights, outputs, x, y);
  }
  add_product_portable(w, weights, outputs, x, y);
}

constexpr std::uint32_t together = 8;  // outputs that kernels compute at once

}  // namespace

bool runs_here(ProductPath path) {
#if defined(__x86_64__)
  if (path == ProductPath::avx2) {
    unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's __builtin_cpu_supports has no "f16c"
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) == 1 &&
           (c & bit_F16C) != 0;
  }
#endif
  return path == ProductPath::portable;
}

ProductPath best_path() {
  static const bool avx2 = runs_here(ProductPath::avx2);
  return avx2 ? ProductPath::avx2 : ProductPath::portable;
}

void ChunkedRows::set(const Matrix& x) {
  const auto columns = static_cast<std::uint32_t>(x.cols());
  rows_ = static_cast<std::uint32_t>(x.rows());
  blocks_ = (columns + Block::columns - 1) / Block::columns;
  memory_.resize(std::max(memory_.size(), std::size_t{rows_} * blocks_));
  for (std::uint32_t c = 0; c < chunks(); ++c) {
    const std::uint32_t first = c * chunk_columns, count = std::min(chunk_columns, columns - first);
    for (std::uint32_t row = 0; row < rows_; ++row) {
      Block* to = &memory_[place(c, row)];
      if (count < chunk_columns) to[blocks(c) - 1] = {};
      std::memcpy(to, x.row(row).data() + first, count * sizeof(float));
    }
  }
}

template <class Layout>
void PackedProduct::share(const Layout& w, const Matrix& x, std::initializer_list<Factor> factors) {
  for (const Factor& f : factors) f.y->setZero(x.rows(), w.rows);
  if (x.rows() == 0) return;
  x_.set(x);
  const auto outputs = static_cast<std::uint32_t>(factors.size() * w.rows);
  share_work(workers_, outputs, together, std::uint64_t{outputs} * w.columns * x_.rows(),
             [&](std::uint32_t first, std::uint32_t end) {
               std::uint32_t begin = 0;  // of this factor's outputs
               for (const Factor& f : factors) {
                 const std::uint32_t from = std::max(first, begin), to = std::min(end, begin + w.rows);
                 if (from < to) add_product(path_, w, f.weights, {from - begin, to - begin}, x_, f.y->data());
                 begin += w.rows;
               }
             });
}

void PackedProduct::run(const PackedLayout& w, const Matrix& x, std::initializer_list<Factor> factors) {
  share(w, x, factors);
}

void PackedProduct::run(const PassThroughLayout& w, const Matrix& x, std::initializer_list<Factor> factors) {
  share(w, x, factors);
}

}  // namespace ferry::engine
