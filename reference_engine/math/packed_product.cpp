#include "math/packed_product.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "math/share_work.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t together = 16;  // outputs that kernels compute at once

std::uint32_t rows_of(const StoredLayout& layout) {
  return std::visit([](const auto& w) { return w.rows; }, layout);
}
std::uint32_t columns_of(const StoredLayout& layout) {
  return std::visit([](const auto& w) { return w.columns; }, layout);
}

template <class T>
void grow(std::vector<T>& values, std::size_t size) {
  if (values.size() < size) values.resize(size);
}

/// Sums values in an order that does not depend on their alignment.
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
  if (path == ProductPath::avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) {
    return part::avx512_int8_kernel;
  }
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
  static const ProductPath best = [] {
    const char* wanted = std::getenv("FERRY_INSTRUCTIONS");
    const std::string name = wanted == nullptr ? "" : wanted;
    ProductPath found = ProductPath::portable;
    std::string here;
    for (const ProductPath path : product_paths) {
      if (!runs_here(path)) continue;
      if (name == name_of(path)) return path;
      found = path;
      here += std::string(here.empty() ? "" : ", ") + name_of(path);
    }
    if (name.empty()) return found;
    throw InputError("FERRY_INSTRUCTIONS: \"" + name + "\"; this processor has " + here);
  }();
  return best;
}

bool has_codes(const StoredLayout& w) {
  const auto* blocks = std::get_if<BlockLayout>(&w);
  return blocks != nullptr ? blocks->type != BlockType::fp8 : std::holds_alternative<PackedLayout>(w);
}

void ChunkedRows::resize(std::uint32_t rows, std::uint32_t columns, const ColumnOrder& order, std::uint32_t panel_rows,
                         std::uint32_t lanes) {
  rows_ = rows;
  columns_ = columns;
  order_ = order;
  natural_ = order.factor == 1 && std::is_sorted(std::begin(order.column), std::end(order.column));
  panel_rows_ = panel_rows;
  lanes_ = lanes;
  constexpr std::size_t lines = chunk_columns * sizeof(float) / sizeof(Line);
  grow(memory_, std::size_t{rows} * ((columns + chunk_columns - 1) / chunk_columns) * lines);
}

void ChunkedRows::set(std::uint32_t row, const float* from) {
  const std::uint32_t in_panel = row % panel_rows_, together = panel(row - in_panel);
  for (std::uint32_t first = 0; first < columns_; first += stretch_columns, from += stretch_columns) {
    const float* at = from;
    float last[stretch_columns] = {};
    if (columns_ - first < stretch_columns) {
      std::copy_n(from, columns_ - first, last);
      at = last;
    }
    float* to = reinterpret_cast<float*>(memory_.data()) + place(first / stretch_columns, row - in_panel) +
                std::size_t{in_panel} * lanes_;
    for (std::uint32_t i = 0; i < stretch_columns; i += lanes_, to += std::size_t{lanes_} * together) {
      if (natural_) {
        std::copy_n(at + i, lanes_, to);
      } else {
        for (std::uint32_t c = 0; c < lanes_; ++c) to[c] = order_.factor * at[order_.column[i + c]];
      }
    }
  }
}

void Int8Rows::resize(std::uint32_t rows, std::uint32_t columns, const ColumnOrder& order) {
  rows_ = rows;
  columns_ = columns;
  order_ = order;
  grow(memory_, std::size_t{rows} * ((stretches() + chunk_stretches - 1) / chunk_stretches));
}

void PackedProduct::resize(const Input& input) const {
  part::Rows& to = *input.to;
  const std::uint32_t panel = kernel_->panel_rows, lanes = kernel_->lanes;
  if (const auto* plain = std::get_if<PassThroughLayout>(&input.w)) {
    to.values.resize(input.rows, plain->columns, kernel_->order_floats(*plain), panel, lanes);
    return;
  }
  if (const auto* blocks = std::get_if<BlockLayout>(&input.w)) {
    if (is_int8(input.w)) return to.int8.resize(input.rows, blocks->columns, int8_->order_blocks());
    const PassThroughLayout floats{blocks->rows, blocks->columns, FloatType::f32};
    to.values.resize(input.rows, blocks->columns, kernel_->order_floats(floats), panel, lanes);
    return;
  }
  const auto& w = std::get<PackedLayout>(input.w);
  if (is_int8(input.w)) return to.int8.resize(input.rows, w.columns, int8_->order_packed(w));
  const ColumnOrder order = kernel_->order_packed(w);
  to.values.resize(input.rows, w.columns, order, panel, lanes);
  const auto sums = static_cast<std::uint32_t>(2 * w.row_groups());
  to.bias = order.bias;
  grow(to.sums, std::size_t{input.rows} * sums);
  to.group_sums.resize(input.rows, sums, kernel_->order_floats({}), panel, lanes);
}

void PackedProduct::set(const Input& input, std::uint32_t row) const {
  part::Rows& to = *input.to;
  const std::uint32_t from_row = input.which != nullptr ? input.which[row] / input.divisor : row;
  const float* from = input.x + std::size_t{from_row} * columns_of(input.w);
  const auto* w = std::get_if<PackedLayout>(&input.w);
  if (is_int8(input.w)) return int8_->set(to.int8, row, from);
  to.values.set(row, from);
  if (w == nullptr) return;
  float* sums = to.sums.data() + std::size_t{row} * 2 * w->row_groups();
  for (std::uint32_t g = 0; g < w->row_groups(); ++g) {
    const float sum = sum_of(from + std::size_t{g} * w->group, w->group_size(g));
    sums[2 * g] = -to.bias * sum;
    sums[2 * g + 1] = sum;
  }
  to.group_sums.set(row, sums);
}

void PackedProduct::prepare(View<const Input> inputs) {
  constexpr std::uint64_t products_a_number = 8;  // products that take as long as preparing a number
  first_rows_.assign(1, 0);
  std::uint64_t numbers = 0;
  for (const Input& input : inputs) {
    resize(input);
    first_rows_.push_back(first_rows_.back() + input.rows);
    numbers += std::uint64_t{input.rows} * columns_of(input.w);
  }
  share_work(workers_, first_rows_.back(), numbers * products_a_number, [&](std::uint32_t first, std::uint32_t end) {
    for (std::uint32_t i = 0; i < inputs.size; ++i) {
      for (std::uint32_t row = std::max(first, first_rows_[i]); row < std::min(end, first_rows_[i + 1]); ++row) {
        set(inputs[i], row - first_rows_[i]);
      }
    }
  });
}

void PackedProduct::multiply(const Product& product, part::Outputs outputs) const {
  if (const auto* plain = std::get_if<PassThroughLayout>(&product.w)) {
    kernel_->multiply_floats(*plain, product.weights, outputs, *product.x, product.y);
    return;
  }
  if (const auto* blocks = std::get_if<BlockLayout>(&product.w)) {
    const auto run = is_int8(product.w) ? int8_->multiply_blocks : kernel_->multiply_blocks;
    run(*blocks, product.weights, outputs, *product.x, product.y);
    return;
  }
  const auto run = is_int8(product.w) ? int8_->multiply_packed : kernel_->multiply_packed;
  run(std::get<PackedLayout>(product.w), product.weights, outputs, *product.x, product.y);
}

void PackedProduct::multiply(View<const Product> products) {
  first_costs_.assign(1, 0);  // in multiplications
  for (const Product& p : products) {
    const std::uint64_t rows = is_int8(p.w) ? p.x->int8.rows() : p.x->values.rows();
    first_costs_.push_back(first_costs_.back() + rows * rows_of(p.w) * columns_of(p.w));
  }
  const std::uint64_t cost = first_costs_.back();
  // How many outputs of product i lie before the cost `at`, in whole groups, since kernels compute `together` at once.
  auto outputs = [&](std::uint32_t i, std::uint64_t at) -> std::uint32_t {
    const std::uint32_t rows = rows_of(products[i].w);
    const std::uint64_t own = first_costs_[i + 1] - first_costs_[i];
    if (at >= first_costs_[i + 1]) return rows;
    if (at <= first_costs_[i]) return 0;
    return static_cast<std::uint32_t>((at - first_costs_[i]) * rows / own / together * together);
  };
  share_work(workers_, cost, cost, [&](std::uint64_t first, std::uint64_t end) {
    for (std::uint32_t i = 0; i < products.size; ++i) {
      const part::Outputs own{outputs(i, first), outputs(i, end)};
      if (own.first < own.end) multiply(products[i], own);
    }
  });
}

void PackedProduct::run(const Matrix& x, std::initializer_list<Factor> factors) {
  const auto rows = static_cast<std::uint32_t>(x.rows());
  inputs_.clear();
  bool has[2] = {};  // as floats, and of 8 bits
  for (const Factor& f : factors) {
    if (std::exchange(has[is_int8(f.w) ? 1 : 0], true)) continue;
    inputs_.push_back({.w = f.w, .x = x.data(), .rows = rows, .to = &x_});
  }
  prepare(inputs_);
  products_.clear();
  for (const Factor& f : factors) {
    f.y->resize(x.rows(), rows_of(f.w));
    products_.push_back({f.w, f.weights, &x_, f.y->data()});
  }
  multiply(products_);
}

}  // namespace ferry::engine
