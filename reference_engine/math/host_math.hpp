/// @file
/// The few operations that the CPU device is made of, on Eigen. Their code is in a file of its own: every file that saw
/// it would compile Eigen's products again.
#pragma once
#include <cmath>
#include <cstdint>

#include "math/matrix.hpp"

namespace ferry::engine {

/// Calls `change(row, i)` for each row of `x` as an array. Eigen rounds by where a row lies and by what is left of it behind
/// whole vectors, and neither the place of a row nor its company may matter: unless all rows lie alike, each is changed in
/// memory of its own.
template <class Change>
void change_rows(Matrix& x, const Change& change) {
  constexpr Eigen::Index longest_vector = 16;
  if (x.cols() % longest_vector == 0) {
    for (Eigen::Index i = 0; i < x.rows(); ++i) change(x.row(i).array(), i);
    return;
  }
  Eigen::Array<float, 1, Eigen::Dynamic> row;
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    row = x.row(i).array();
    change(row, i);
    x.row(i) = row.matrix();
  }
}

/// y = x W^T. x: [rows, in], weight: [out, in], y: [rows, out].
/// Few rows are computed one by one, so that a token's result does not depend on who else is in its batch.
void linear(const MatrixRef& x, const MatrixRef& weight, Matrix& y);

/// x += bias, row by row; an empty bias is none.
void add_rows(Matrix& x, const Vector& bias);

/// y = x / rms(x) * weight, row by row.
void rms_norm(const Matrix& x, const Vector& weight, float epsilon, Matrix& y);

/// The same of one row of `size` columns, in place.
void rms_norm(float* x, std::uint32_t size, const Vector& weight, float epsilon);

/// y = (x - mean(x)) / deviation(x) * weight + bias, row by row.
void layer_norm(const Matrix& x, const Vector& weight, const Vector& bias, float epsilon, Matrix& y);

void softmax_rows(Matrix& x);

/// gate := silu(gate) * up, or gelu(gate) * up.
void swiglu(Matrix& gate, const Matrix& up);
void geglu(Matrix& gate, const Matrix& up);

inline float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}
inline float silu(float x) {
  return x * sigmoid(x);
}
inline float softplus(float x) {
  return x > 20.0F ? x : std::log1p(std::exp(x));
}

/// GELU as models compute it: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x sigmoid(2 sqrt(2 / pi) (...)).
template <class Array>
auto gelu(const Array& x) {
  constexpr float twice_root = 1.5957691216F;
  return x / (1.0F + (-twice_root * (x + 0.044715F * x * x * x)).exp());
}

}  // namespace ferry::engine
