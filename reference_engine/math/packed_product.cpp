#include "math/packed_product.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "math/share_work.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t together = 8;  // outputs that kernels compute at once

/// In one order, wherever they lie.
float sum_of(const float* values, std::uint32_t count) {
  constexpr std::uint32_t lanes = 16;
  float sums[lanes] = {};
  std::uint32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::uint32_t lane = 0; lane < lanes; ++lane) sums[lane] += values[i + lane];
  }
  for (; i < count; ++i) sums[i % lanes] += values[i];
  for (std::uint32_t half = lanes / 2; half > 0; half /= 2) {
    for (std::uint32_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

}  // namespace

const part::ProductKernel& part::kernel_of(ProductPath path) {
#if defined(__x86_64__)
  if (path == ProductPath::avx2) return part::avx2_kernel;
  if (path == ProductPath::avx512) return part::avx512_kernel;
#endif
  return part::portable_kernel;
}

const part::Int8Kernel& part::int8_kernel_of(ProductPath path) {
#if defined(__x86_64__)
  if (path != ProductPath::portable) return part::avx2_int8_kernel;
#endif
  static_cast<void>(path);
  return part::portable_int8_kernel;
}

const char* name_of(ProductPath path) {
  return path == ProductPath::avx512 ? "avx512" : path == ProductPath::avx2 ? "avx2" : "portable";
}

bool runs_here(ProductPath path) {
#if defined(__x86_64__)
  if (path == ProductPath::avx2) {
    unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's __builtin_cpu_supports has no "f16c"
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) == 1 &&
           (c & bit_F16C) != 0;
  }
  if (path == ProductPath::avx512) return __builtin_cpu_supports("avx512f");
#endif
  return path == ProductPath::portable;
}

ProductPath best_path() {
  static const ProductPath best = runs_here(ProductPath::avx512) ? ProductPath::avx512
                                  : runs_here(ProductPath::avx2) ? ProductPath::avx2
                                                                 : ProductPath::portable;
  return best;
}

void ChunkedRows::set(const MatrixRef& x, const ColumnOrder& order, std::uint32_t panel_rows, std::uint32_t lanes) {
  rows_ = static_cast<std::uint32_t>(x.rows());
  columns_ = static_cast<std::uint32_t>(x.cols());
  panel_rows_ = panel_rows;
  const bool natural = order.factor == 1 && std::is_sorted(std::begin(order.column), std::end(order.column));
  constexpr std::uint32_t each = chunk_columns / stretch_columns;
  memory_.resize(std::max(memory_.size(), std::size_t{rows_} * ((stretches() + each - 1) / each)));
  for (std::uint32_t stretch = 0; stretch < stretches(); ++stretch) {
    const std::uint32_t first = stretch * stretch_columns;
    for (std::uint32_t row = 0; row < rows_; ++row) {
      const std::uint32_t in_panel = row % panel_rows, together = panel(row - in_panel);
      float* to = memory_[std::size_t{stretch / each} * rows_ + (row - in_panel)].values +
                  std::size_t{stretch % each * stretch_columns} * together + in_panel * lanes;
      const float* from = x.row(row).data() + first;
      float last[stretch_columns] = {};
      if (columns_ - first < stretch_columns) {
        std::copy_n(from, columns_ - first, last);
        from = last;
      }
      for (std::uint32_t i = 0; i < stretch_columns; i += lanes, to += std::size_t{lanes} * together) {
        if (natural) {
          std::copy_n(from + i, lanes, to);
        } else {
          for (std::uint32_t c = 0; c < lanes; ++c) to[c] = order.factor * from[order.column[i + c]];
        }
      }
    }
  }
}

void PackedProduct::set_rows(const PassThroughLayout& w, const Matrix& x) {
  x_.values.set(x, kernel_->order_floats(w), kernel_->panel_rows, kernel_->lanes);
}

void Int8Rows::set(const Matrix& x, const ColumnOrder& order, Matrix& rounded) {
  rows_ = static_cast<std::uint32_t>(x.rows());
  const auto columns = static_cast<std::uint32_t>(x.cols());
  stretches_ = (columns + stretch_columns - 1) / stretch_columns;
  memory_.resize(std::max(memory_.size(), std::size_t{rows_} * ((stretches_ + chunk_stretches - 1) / chunk_stretches)));
  rounded.resize(x.rows(), x.cols());
  for (std::uint32_t stretch = 0; stretch < stretches_; ++stretch) {
    const std::uint32_t first = stretch * stretch_columns, count = std::min(stretch_columns, columns - first);
    for (std::uint32_t row = 0; row < rows_; ++row) {
      const float* from = x.row(row).data() + first;
      float* back = rounded.row(row).data() + first;
      float largest = 0, none = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::abs(from[i]));
        none += 0 * from[i];  // what is no number, or infinite, makes the scale none
      }
      const float scale = largest / 127 + none, inverse = scale > 0 ? 1 / scale : 0;
      std::int8_t values[stretch_columns] = {};
      for (std::uint32_t i = 0; i < count; ++i) {
        const float value = std::nearbyint(std::clamp(from[i] * inverse, -127.0F, 127.0F));
        values[i] = static_cast<std::int8_t>(value == value ? value : 0);
        back[i] = static_cast<float>(values[i]) * scale;
      }
      Chunk& to = memory_[std::size_t{stretch / chunk_stretches} * rows_ + row];
      for (std::uint32_t i = 0; i < stretch_columns; ++i) {
        to.values[stretch % chunk_stretches][i] = values[order.column[i]];
      }
      to.scales[stretch % chunk_stretches] = scale;
    }
  }
}

void PackedProduct::set_rows(const PackedLayout& w, const Matrix& x) {
  if (int8_ != nullptr) {
    const ColumnOrder order = int8_->order(w);
    x_.int8.set(x, order, rounded_);
    return set_group_sums(w, rounded_, order.bias);
  }
  const ColumnOrder order = kernel_->order_packed(w);
  x_.values.set(x, order, kernel_->panel_rows, kernel_->lanes);
  set_group_sums(w, x, order.bias);
}

void PackedProduct::set_group_sums(const PackedLayout& w, const Matrix& x, float bias) {
  group_sums_.resize(x.rows(), static_cast<Eigen::Index>(2 * w.row_groups()));
  for (Eigen::Index row = 0; row < x.rows(); ++row) {
    for (std::uint32_t g = 0; g < w.row_groups(); ++g) {
      const float sum = sum_of(x.row(row).data() + std::size_t{g} * w.group, w.group_size(g));
      group_sums_(row, 2 * g) = -bias * sum;
      group_sums_(row, 2 * g + 1) = sum;
    }
  }
  x_.group_sums.set(group_sums_, kernel_->order_floats({}), kernel_->panel_rows, kernel_->lanes);
}

template <class Layout>
void PackedProduct::share(const Layout& w, const Matrix& x, std::initializer_list<Factor> factors) {
  for (const Factor& f : factors) f.y->resize(x.rows(), w.rows);
  if (x.rows() == 0) return;
  set_rows(w, x);
  const auto outputs = static_cast<std::uint32_t>(factors.size() * w.rows);
  share_work(workers_, outputs, together, std::uint64_t{outputs} * w.columns * static_cast<std::uint64_t>(x.rows()),
             [&](std::uint32_t first, std::uint32_t end) {
               std::uint32_t begin = 0;  // of this factor's outputs
               for (const Factor& f : factors) {
                 const std::uint32_t from = std::max(first, begin), to = std::min(end, begin + w.rows);
                 begin += w.rows;
                 if (from >= to) continue;
                 const part::Outputs own{from + w.rows - begin, to + w.rows - begin};
                 if constexpr (std::is_same_v<Layout, PackedLayout>) {
                   const auto multiply = int8_ != nullptr ? int8_->multiply : kernel_->multiply_packed;
                   multiply(w, f.weights, own, x_, f.y->data());
                 } else {
                   kernel_->multiply_floats(w, f.weights, own, x_, f.y->data());
                 }
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
