/// @file
/// The few operations that the CPU device is made of, on Eigen.
#pragma once
#include <Eigen/Core>
#include <cmath>
#include <cstdint>

#include "checkpoint/safetensors.hpp"

namespace ferry::engine {

/// Rows are tokens (or output features of a weight), columns features.
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXf;
using MatrixRef = Eigen::Ref<const Matrix>;

/// y = x W^T. x: [rows, in], weight: [out, in], y: [rows, out].
/// Few rows are computed one by one, so that a token's result does not depend on who else is in its batch.
inline void linear(const MatrixRef& x, const MatrixRef& weight, Matrix& y) {
  constexpr Eigen::Index few = 8;
  y.resize(x.rows(), weight.rows());
  if (x.rows() > few) {
    y.noalias() = x * weight.transpose();
    return;
  }
  for (Eigen::Index i = 0; i < x.rows(); ++i) y.row(i).transpose().noalias() = weight * x.row(i).transpose();
}

/// y = x / rms(x) * weight, row by row.
inline void rms_norm(const Matrix& x, const Vector& weight, float epsilon, Matrix& y) {
  y.resize(x.rows(), x.cols());
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const float scale = 1.0F / std::sqrt(x.row(i).squaredNorm() / static_cast<float>(x.cols()) + epsilon);
    y.row(i) = x.row(i).cwiseProduct(weight.transpose()) * scale;
  }
}

inline void softmax_rows(Matrix& x) {
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    x.row(i) = (x.row(i).array() - x.row(i).maxCoeff()).exp();
    x.row(i) /= x.row(i).sum();
  }
}

/// gate := silu(gate) * up.
inline void swiglu(Matrix& gate, const Matrix& up) {
  gate.array() = gate.array() / (1.0F + (-gate.array()).exp()) * up.array();
}

}  // namespace ferry::engine
