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
  y = x;
  change_rows(y, [&](auto&& row, Eigen::Index) {
    const float scale = 1.0F / std::sqrt(row.matrix().squaredNorm() / static_cast<float>(row.size()) + epsilon);
    row = row * weight.transpose().array() * scale;
  });
}

void rms_norm(float* x, std::uint32_t size, const Vector& weight, float epsilon) {
  float squares = 0;  // summed in the same order wherever the row lies
  for (std::uint32_t i = 0; i < size; ++i) squares += x[i] * x[i];
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(size) + epsilon);
  for (std::uint32_t i = 0; i < size; ++i) x[i] *= weight[i] * scale;
}

void layer_norm(const Matrix& x, const Vector& weight, const Vector& bias, float epsilon, Matrix& y) {
  resize(y, x.rows(), x.cols());
  y = x;
  change_rows(y, [&](auto&& row, Eigen::Index) {
    row -= row.mean();
    const float scale = 1.0F / std::sqrt(row.matrix().squaredNorm() / static_cast<float>(row.size()) + epsilon);
    row = row * weight.transpose().array() * scale + bias.transpose().array();
  });
}

void softmax_rows(Matrix& x) {
  change_rows(x, [](auto&& row, Eigen::Index) {
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
  });
}

void swiglu(Matrix& gate, const Matrix& up) {
  change_rows(gate, [&](auto&& row, Eigen::Index i) { row = row / (1.0F + (-row).exp()) * up.row(i).array(); });
}

void geglu(Matrix& gate, const Matrix& up) {
  change_rows(gate, [&](auto&& row, Eigen::Index i) { row = gelu(row) * up.row(i).array(); });
}

}  // namespace ferry::engine
