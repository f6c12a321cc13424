/// @file
/// Matrices of host memory.
#pragma once
#include <Eigen/Core>

namespace ferry::engine {

/// Rows are tokens (or output features of a weight), columns features.
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXf;
using MatrixRef = Eigen::Ref<const Matrix>;

/// As Eigen's own resize, which frees the old memory of a matrix twice if there is no memory for the new.
template <class Dense>
void resize(Dense& m, Eigen::Index rows, Eigen::Index columns) {
  if (m.rows() * m.cols() != rows * columns) Dense().swap(m);
  m.resize(rows, columns);
}

}  // namespace ferry::engine
