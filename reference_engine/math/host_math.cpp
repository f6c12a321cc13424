#include "math/host_math.hpp"

#include <cmath>

namespace ferry::engine {

void linear(const MatrixRef& x, const MatrixRef& weight, Matrix& y) {
  constexpr Eigen::Index few = 8;
  resize(y, x.rows(), weight.rows());
  if (x.rows() > few) {
    y.noalias() = x * weight.transpose();
    return;
  }
  for (Eigen::Index i = 0; i < x.rows(); ++i) y.row(i).transpose().noalias() = weight * x.row(i).transpose();
}

void add_rows(Matrix& x, const Vector& bias) {
  if (bias.size() > 0) x.rowwise() += bias.transpose();
}

void rms_norm(const Matrix& x, const Vector& weight, float epsilon, Matrix& y) {
  resize(y, x.rows(), x.cols());
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const float scale = 1.0F / std::sqrt(x.row(i).squaredNorm() / static_cast<float>(x.cols()) + epsilon);
    y.row(i) = x.row(i).cwiseProduct(weight.transpose()) * scale;
  }
}

void rms_norm(float* x, std::uint32_t size, const Vector& weight, float epsilon) {
  float squares = 0;  // summed in the same order wherever the row lies
  for (std::uint32_t i = 0; i < size; ++i) squares += x[i] * x[i];
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(size) + epsilon);
  for (std::uint32_t i = 0; i < size; ++i) x[i] *= weight[i] * scale;
}

void layer_norm(const Matrix& x, const Vector& weight, const Vector& bias, float epsilon, Matrix& y) {
  resize(y, x.rows(), x.cols());
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    y.row(i) = x.row(i).array() - x.row(i).mean();
    const float scale = 1.0F / std::sqrt(y.row(i).squaredNorm() / static_cast<float>(x.cols()) + epsilon);
    y.row(i) = y.row(i).cwiseProduct(weight.transpose()) * scale + bias.transpose();
  }
}

void softmax_rows(Matrix& x) {
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    x.row(i) = (x.row(i).array() - x.row(i).maxCoeff()).exp();
    x.row(i) /= x.row(i).sum();
  }
}

void swiglu(Matrix& gate, const Matrix& up) {
  gate.array() = gate.array() / (1.0F + (-gate.array()).exp()) * up.array();
}

void geglu(Matrix& gate, const Matrix& up) {
  gate.array() = gelu(gate.array()) * up.array();
}

}  // namespace ferry::engine
