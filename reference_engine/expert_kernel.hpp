/// @file
/// The computation of one expert from its bytes.
#pragma once
#include <cstddef>

#include "expert.hpp"
#include "host_math.hpp"

namespace ferry::engine {

/// Runs single experts. Owns the scratch memory for it.
class ExpertKernel {
 public:
  explicit ExpertKernel(const ExpertLayout& layout) : layout_(layout) {}

  /// y = down (silu(gate x) * up x). x, y: [rows, hidden]; `expert` is one block as ExpertLayout describes, at `p`,
  /// which is not `skip`.
  void run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y);

 private:
  ExpertLayout layout_;
  Matrix weights_gate_, weights_up_, weights_down_, gate_, up_;
};

}  // namespace ferry::engine
