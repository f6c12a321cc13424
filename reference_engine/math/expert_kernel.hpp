/// @file
/// The computation of one expert from its bytes.
#pragma once
#include <cstddef>

#include "math/expert.hpp"
#include "math/matrix.hpp"
#include "math/packed_product.hpp"

namespace ferry::engine {

/// Runs single experts straight from their stored form. Owns the scratch memory for it.
class ExpertKernel {
 public:
  /// `workers` share the products, as PackedProduct has it, and `activations` are its.
  explicit ExpertKernel(const ExpertLayout& layout, ProductPath path = best_path(), WorkerPool* workers = nullptr,
                        Activations activations = Activations::floats)
      : layout_(layout), product_(path, workers, activations) {}

  /// y = down (silu(gate x) * up x). x, y: [rows, hidden]; `expert` is one block as ExpertLayout describes, at `p`,
  /// which is not `skip`, at any address. A row's result depends neither on how many rows there are nor on its place.
  void run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y);

 private:
  template <class Layout>
  void run(const Layout& wide, const Layout& narrow, const std::byte* expert, const Matrix& x, Matrix& y);

  ExpertLayout layout_;
  PackedProduct product_;
  Matrix gate_, up_;
  Eigen::RowVectorXf activated_;
};

/// One expert of a plan over its rows, from its bytes: rows of `input` [rows, hidden] to `results` [rows * top_k,
/// hidden] by assignment. The last two are scratch.
inline void run_rows(ExpertKernel& kernel, const Plan& plan, const Task& task, std::uint32_t top_k,
                     const std::byte* expert, const Matrix& input, float* results, Matrix& rows_in, Matrix& rows_out) {
  rows_in.resize(task.rows, input.cols());
  for (std::uint32_t i = 0; i < task.rows; ++i) {
    rows_in.row(i) = input.row(static_cast<Eigen::Index>(plan.assignments[task.first + i] / top_k));
  }
  kernel.run(expert, task.what.precision, rows_in, rows_out);
  for (std::uint32_t i = 0; i < task.rows; ++i) {
    const auto a = static_cast<Eigen::Index>(plan.assignments[task.first + i]);
    Eigen::Map<Eigen::RowVectorXf>(results + a * input.cols(), input.cols()) = rows_out.row(i);
  }
}

}  // namespace ferry::engine
