/// @file
/// Matrices of host memory.
#pragma once
#include <Eigen/Core>

namespace ferry::engine {

/// Rows are tokens (or output features of a weight), columns features.
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXf;
using MatrixRef = Eigen::Ref<const Matrix>;

}  // namespace ferry::engine
