/// @file
/// Products of rows with a matrix in its stored form: never through a full copy of it as floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "ferry/codec/packed.hpp"
#include "ferry/codec/pass_through.hpp"
#include "math/matrix.hpp"
#include "support/worker_pool.hpp"

namespace ferry::engine {

/// Which instructions products are made of.
enum class ProductPath {
  portable,  ///< what every processor has
  avx2       ///< AVX2, FMA and F16C
};

/// Whether this processor has them.
bool runs_here(ProductPath path);
/// The fastest that this processor has.
ProductPath best_path();

/// 32 columns: what kernels read at a time.
struct alignas(64) Block {
  static constexpr std::uint32_t columns = 32;
  float weights[columns];
};

/// Rows [rows, columns] cut into chunks of 16 blocks of columns, one chunk behind the other, so that all rows of one
/// chunk lie together; zeros fill the last block up.
class ChunkedRows {
 public:
  static constexpr std::uint32_t chunk = 16;  // a chunk of 8 outputs fills half of a usual L1 cache

  void set(const Matrix& x);
  [[nodiscard]] std::uint32_t rows() const { return rows_; }
  [[nodiscard]] std::uint32_t chunks() const { return (blocks_ + chunk - 1) / chunk; }
  /// Blocks of each row in chunk `c`; only the last chunk has fewer than `chunk`.
  [[nodiscard]] std::uint32_t blocks(std::uint32_t c) const {
    return blocks_ - c * chunk < chunk ? blocks_ - c * chunk : chunk;
  }
  [[nodiscard]] const Block* at(std::uint32_t c, std::uint32_t row) const { return memory_.data() + place(c, row); }

 private:
  [[nodiscard]] std::size_t place(std::uint32_t c, std::uint32_t row) const {
    return std::size_t{c} * chunk * rows_ + std::size_t{row} * blocks(c);
  }

  std::uint32_t rows_ = 0, blocks_ = 0;
  std::vector<Block> memory_;  // never shrinks
};

/// Computes products, and holds the scratch memory for it.
///
/// Sums are made in one order on each path, which depends on the columns alone: a row's results do not depend on how
/// many rows are computed together, nor on where it stands among them, nor on how many threads there are. Nor do they
/// depend on the stored form: float32 weights give the same as packed ones that stand for them. The two paths differ in
/// rounding.
class PackedProduct {
 public:
  /// `workers` share the rows of W, where there is enough to share; null: the caller does it all. They outlive it.
  explicit PackedProduct(ProductPath path = best_path(), WorkerPool* workers = nullptr)
      : path_(path), workers_(workers) {}

  /// A matrix W at any address, and where its product goes.
  struct Factor {
    const std::byte* weights;
    Matrix* y;
  };

  /// y = x W^T for each factor, whose W all are as `w` says. x: [rows, columns of W], y: [rows, rows of W]. What has one
  /// x is shared among the threads at once.
  void run(const PackedLayout& w, const Matrix& x, std::initializer_list<Factor> factors);
  void run(const PassThroughLayout& w, const Matrix& x, std::initializer_list<Factor> factors);
  /// The same for one.
  template <class Layout>
  void run(const Layout& w, const std::byte* weights, const Matrix& x, Matrix& y) {
    run(w, x, {{weights, &y}});
  }

 private:
  template <class Layout>
  void share(const Layout& w, const Matrix& x, std::initializer_list<Factor> factors);

  ProductPath path_;
  WorkerPool* workers_;
  ChunkedRows x_;
};

namespace part {

/// Rows of W, which are columns of y.
struct Outputs {
  std::uint32_t first, end;
};

/// With AVX2, FMA and F16C. Adds to those columns of y [rows, rows of W].
void add_product_avx2(const PackedLayout& w, const std::byte* weights, Outputs outputs, const ChunkedRows& x, float* y);
void add_product_avx2(const PassThroughLayout& w, const std::byte* weights, Outputs outputs, const ChunkedRows& x,
                      float* y);

}  // namespace part

}  // namespace ferry::engine
