/// @file
/// Products of rows with a matrix in its stored form: never through a full copy of it as floats.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <variant>
#include <vector>

#include "ferry/codec/blocks.hpp"
#include "ferry/codec/packed.hpp"
#include "ferry/codec/pass_through.hpp"
#include "math/activations.hpp"
#include "math/matrix.hpp"
#include "support/worker_pool.hpp"

namespace ferry::engine {

/// Which instructions products are made of.
enum class ProductPath {
  portable,  ///< what every processor has
  avx2,      ///< AVX2, FMA and F16C
  avx512     ///< AVX-512 F
};
inline constexpr ProductPath product_paths[] = {ProductPath::portable, ProductPath::avx2, ProductPath::avx512};

/// "avx2".
const char* name_of(ProductPath path);
/// Whether this processor has them.
bool runs_here(ProductPath path);
/// The fastest that this processor has, or the one that the environment's FERRY_INSTRUCTIONS names. Throws InputError if it names
/// none, or one that this processor lacks.
ProductPath best_path();

inline constexpr std::uint32_t stretch_columns = 64;  ///< columns that kernels unpack at a time
inline constexpr std::uint32_t chunk_columns = 512;   ///< columns whose sums are made at once

/// The order in which a kernel has the columns of a stretch once they are unpacked, and the values that it then has instead of
/// codes: a code is factor * value - bias. Such values are made faster than floats that equal the codes.
struct ColumnOrder {
  std::uint8_t column[stretch_columns];
  float factor = 1, bias = 0;
};

/// Rows [rows, columns] as a kernel reads them: cut into chunks of columns, one chunk behind the other; a chunk into panels of
/// rows, of which the last may have fewer. In a panel the rows take turns with a vector of columns each, so that what is
/// multiplied together is one stream. The columns of a stretch are in the kernel's order; zeros fill up the last stretch.
class ChunkedRows {
 public:
  /// `lanes`: columns of a vector. Every row must be set afterwards.
  void resize(std::uint32_t rows, std::uint32_t columns, const ColumnOrder& order, std::uint32_t panel_rows,
              std::uint32_t lanes);
  /// `from`: [columns]. Rows can be set by several threads at once.
  void set(std::uint32_t row, const float* from);

  [[nodiscard]] std::uint32_t rows() const { return rows_; }
  [[nodiscard]] std::uint32_t columns() const { return columns_; }
  [[nodiscard]] std::uint32_t stretches() const { return (columns_ + stretch_columns - 1) / stretch_columns; }
  /// How many rows lie together in the panel that begins with a row.
  [[nodiscard]] std::uint32_t panel(std::uint32_t first_row) const { return std::min(panel_rows_, rows_ - first_row); }
  /// A stretch of a panel; the next one follows, up to the end of the chunk.
  [[nodiscard]] const float* at(std::uint32_t stretch, std::uint32_t first_row) const {
    return reinterpret_cast<const float*>(memory_.data()) + place(stretch, first_row);
  }

 private:
  struct alignas(64) Line {
    float values[16];
  };
  [[nodiscard]] std::size_t place(std::uint32_t stretch, std::uint32_t first_row) const {
    constexpr std::uint32_t each = chunk_columns / stretch_columns;
    return (std::size_t{stretch / each} * rows_ + first_row) * chunk_columns +
           std::size_t{stretch % each * stretch_columns} * panel(first_row);
  }

  std::uint32_t rows_ = 0, columns_ = 0, panel_rows_ = 1, lanes_ = 1;
  ColumnOrder order_;
  bool natural_ = false;      ///< columns keep their order, and values are x's own
  std::vector<Line> memory_;  // as one array of floats: panels go through many lines; never shrinks
};

/// Rows [rows, columns] rounded to 8 bits: value * scale, one scale for a stretch, in the order of a kernel.
class Int8Rows {
 public:
  static constexpr std::uint32_t chunk_stretches = 16;
  struct alignas(64) Chunk {
    std::int8_t values[chunk_stretches][stretch_columns];  ///< -127 to 127
    float scales[chunk_stretches];
    /// Sums of the values of all columns, of each half and each quarter of them: what groups' minima are multiplied with.
    float sums[chunk_stretches], halves[chunk_stretches][2], quarters[chunk_stretches][4];
  };

  void resize(std::uint32_t rows, std::uint32_t columns, const ColumnOrder& order);

  [[nodiscard]] std::uint32_t rows() const { return rows_; }
  [[nodiscard]] std::uint32_t columns() const { return columns_; }
  [[nodiscard]] const ColumnOrder& order() const { return order_; }
  [[nodiscard]] std::uint32_t stretches() const { return (columns_ + stretch_columns - 1) / stretch_columns; }
  /// The chunk of a row that begins at a stretch; that of the next row follows.
  [[nodiscard]] const Chunk* at(std::uint32_t stretch, std::uint32_t row) const {
    return &memory_[std::size_t{stretch / chunk_stretches} * rows_ + row];
  }
  Chunk* at(std::uint32_t stretch, std::uint32_t row) {
    return &memory_[std::size_t{stretch / chunk_stretches} * rows_ + row];
  }

 private:
  std::uint32_t rows_ = 0, columns_ = 0;
  ColumnOrder order_;
  std::vector<Chunk> memory_;  // never shrinks
};

namespace part {

/// Rows of W, which are columns of y.
struct Outputs {
  std::uint32_t first, end;
};

/// What is multiplied with weights.
struct Rows {
  ChunkedRows values;
  Int8Rows int8;  ///< the same with 8 bits, for weights of codes
  /// What multiplies each group's {scale, minimum}, where weights have groups: {-bias * sum, sum}, sums of x over the group.
  ChunkedRows group_sums;
  std::vector<float> sums;  // [rows, 2 * groups], those in one piece; scratch, which never shrinks
  float bias = 0;           ///< of codes
};

/// What one path consists of.
struct ProductKernel {
  std::uint32_t panel_rows, lanes;  ///< of ChunkedRows
  ColumnOrder (*order_packed)(const PackedLayout& w);
  ColumnOrder (*order_floats)(const PassThroughLayout& w);
  /// Computes the columns `outputs` of y [rows of x, rows of W]. x: in this kernel's order.
  void (*multiply_packed)(const PackedLayout& w, const std::byte* weights, Outputs outputs, const Rows& x, float* y);
  void (*multiply_floats)(const PassThroughLayout& w, const std::byte* weights, Outputs outputs, const Rows& x,
                          float* y);
  void (*multiply_blocks)(const BlockLayout& w, const std::byte* weights, Outputs outputs, const Rows& x, float* y);
  /// Weighted sums of the first `count` rows of `values`, f32 or f16, over their first `columns` columns. weights: [rows,
  /// stride], up to `panel_rows` rows, of which row r makes row which[r] of y [any, columns]. Each sum is made in the order of
  /// the rows of `values`.
  void (*mix)(const float* weights, std::size_t stride, std::uint32_t rows, std::uint32_t count,
              const std::byte* values, const PassThroughLayout& layout, std::uint32_t columns,
              const std::uint32_t* which, float* y);
};

extern const ProductKernel portable_kernel, avx2_kernel, avx512_kernel;

const ProductKernel& kernel_of(ProductPath path);

/// The same for activations of 8 bits.
struct Int8Kernel {
  ColumnOrder (*order_packed)(const PackedLayout& w);
  ColumnOrder (*order_blocks)();
  /// Rounds a row [columns].
  void (*set)(Int8Rows& rows, std::uint32_t row, const float* from);
  void (*multiply_packed)(const PackedLayout& w, const std::byte* weights, Outputs outputs, const Rows& x, float* y);
  void (*multiply_blocks)(const BlockLayout& w, const std::byte* weights, Outputs outputs, const Rows& x, float* y);
};

extern const Int8Kernel portable_int8_kernel, avx2_int8_kernel, avx512_int8_kernel;

/// On processors that have AVX-512 but not its BW and VNNI, the kernel of AVX2.
const Int8Kernel& int8_kernel_of(ProductPath path);

}  // namespace part

/// How a matrix is stored, [rows, columns].
using StoredLayout = std::variant<PassThroughLayout, PackedLayout, BlockLayout>;

/// Whether weights are whole numbers with scales, which activations of 8 bits can be multiplied with: packed, or blocks of all
/// types but fp8.
bool has_codes(const StoredLayout& w);

/// Computes products.
///
/// Sums are made in one order on each path, which depends on the columns and the stored form alone: a row's results do
/// not depend on how many rows are computed together, nor on where it stands among them, nor on how many threads there
/// are. Weights in bf16 or f16 give the same as they would in f32. The paths differ in rounding.
///
/// For packed weights, minimum + code * scale is never formed: a group's codes are multiplied with x and added, and that
/// sum is multiplied with the scale; the minimum is multiplied with the sum of x over the group.
///
/// Blocks (BlockLayout) give, bit for bit, what the floats that they stand for would give.
///
/// With Activations::int8, all of this holds for the rounded x, where weights have codes. The sums of blocks' groups are then
/// multiplied with scales, as those of packed weights are.
class PackedProduct {
 public:
  /// `workers` share what is computed at once, where there is enough to share; null: the caller does it all. They
  /// outlive it.
  explicit PackedProduct(ProductPath path = best_path(), WorkerPool* workers = nullptr,
                         Activations activations = Activations::floats)
      : PackedProduct(part::kernel_of(path), workers, &part::int8_kernel_of(path)) {
    set_activations(activations);
  }
  /// With activations of 8 bits where there is a kernel for them.
  explicit PackedProduct(const part::ProductKernel& kernel, WorkerPool* workers = nullptr,
                         const part::Int8Kernel* int8 = nullptr)
      : kernel_(&kernel), int8_(int8), workers_(workers), rounds_(int8 != nullptr) {}

  /// Must not be called between `prepare` and the products of what it prepared.
  void set_activations(Activations activations) { rounds_ = activations == Activations::int8 && int8_ != nullptr; }

  /// Whether x has 8 bits for matrices that are stored so. An x for matrices of both kinds is prepared for both.
  [[nodiscard]] bool is_int8(const StoredLayout& w) const { return rounds_ && has_codes(w); }

  /// x [rows, columns] that are to be multiplied with matrices that are stored as `w` is, whatever their rows.
  struct Input {
    StoredLayout w;
    const float* x;
    std::uint32_t rows;
    const std::uint32_t* which = nullptr;  ///< row i is row which[i] / divisor of x; null: i
    std::uint32_t divisor = 1;
    part::Rows* to;  ///< never shrinks
  };
  void prepare(View<const Input> inputs);

  /// y = x W^T for a matrix at any address. y: [rows of x, rows of W].
  struct Product {
    StoredLayout w;
    const std::byte* weights;
    const part::Rows* x;
    float* y;
  };
  void multiply(View<const Product> products);

  /// A matrix W at any address, and where its product goes.
  struct Factor {
    StoredLayout w;
    const std::byte* weights;
    Matrix* y;
  };
  /// `prepare` and `multiply` for one x [rows, columns], and for matrices that are all packed in one way, or all not packed.
  void run(const Matrix& x, std::initializer_list<Factor> factors);
  void run(const StoredLayout& w, const std::byte* weights, const Matrix& x, Matrix& y) { run(x, {{w, weights, &y}}); }

 private:
  void resize(const Input& input) const;
  void set(const Input& input, std::uint32_t row) const;
  void multiply(const Product& product, part::Outputs outputs) const;

  const part::ProductKernel* kernel_;  // of which there is one for each path
  const part::Int8Kernel* int8_;       // null: activations stay floats
  WorkerPool* workers_;
  bool rounds_;  // activations have 8 bits
  // scratch
  part::Rows x_;
  std::vector<Input> inputs_;
  std::vector<Product> products_;
  std::vector<std::uint32_t> first_rows_;
  std::vector<std::uint64_t> first_costs_;
};

}  // namespace ferry::engine
