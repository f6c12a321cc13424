#include "math/expert_kernel.hpp"

namespace ferry::engine {

template <class Layout>
void ExpertKernel::run(const Layout& wide, const Layout& narrow, const std::byte* expert, const Matrix& x, Matrix& y) {
  product_.run(wide, x, {{expert, &gate_}, {expert + wide.bytes(), &up_}});
  for (Eigen::Index i = 0; i < gate_.rows(); ++i) {
    // Into a vector of its own: which elements share a vector register must not depend on where the row begins.
    activated_ = gate_.row(i).array() / (1.0F + (-gate_.row(i).array()).exp()) * up_.row(i).array();
    gate_.row(i) = activated_;
  }
  product_.run(narrow, expert + 2 * wide.bytes(), gate_, y);
}

void ExpertKernel::run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y) {
  if (p == Precision::full) {
    run(layout_.plain(0), layout_.plain(2), expert, x, y);
  } else {
    run(layout_.packed(0, p), layout_.packed(2, p), expert, x, y);
  }
}

}  // namespace ferry::engine
