/// @file
/// The computation of one expert from its bytes.
#pragma once
#include <cstddef>

#include "expert.hpp"
#include "host_math.hpp"
#include "packed_product.hpp"

namespace ferry::engine {

/// Runs single experts straight from their stored form. Owns the scratch memory for it.
class ExpertKernel {
 public:
  explicit ExpertKernel(const ExpertLayout& layout, ProductPath path = best_path()) : layout_(layout), product_(path) {}

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

}  // namespace ferry::engine
