/// @file
/// Predicted gate scores on the host: the gates of all layers as one matrix. Needs Eigen.
#pragma once
#include <Eigen/Core>
#include <cstdint>

#include "ferry/model.hpp"

namespace ferry {

/// Makes the rows that a gate predictor reads: `softmax(W_m x)` for the layers m that follow, from one gate input.
///
/// Source: Fate section 4.3 (one layer ahead), HOBBIT section 3.3 (several at once, "stacking").
/// The gates lie stacked in one [layers * E, d] matrix, so that scores of p adjacent layers are one product.
/// Complexity: O(rows * p * E * d). Not thread-safe: it owns the result.
class GateBank {
 public:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  GateBank(std::uint32_t layers, std::uint32_t experts, std::uint32_t hidden)
      : experts_(experts), gates_(Eigen::Index{layers} * experts, hidden) {}

  /// `gate`: [E, d], row-major, of one layer.
  void set(std::uint32_t layer, const Eigen::Ref<const Matrix>& gate) {
    gates_.middleRows(Eigen::Index{layer} * experts_, experts_) = gate;
  }

  /// Softmax scores [rows, E] that the gate of `layer` would give to `input` [rows, d].
  /// Valid until the next call.
  Scores scores(std::uint16_t layer, const Eigen::Ref<const Matrix>& input) {
    const auto gate = gates_.middleRows(Eigen::Index{layer} * experts_, experts_);
    result_.resize(input.rows(), experts_);
    if (input.rows() == 1) {
      result_.row(0).transpose().noalias() = gate * input.row(0).transpose();
    } else {
      result_.noalias() = input * gate.transpose();
    }
    for (Eigen::Index i = 0; i < result_.rows(); ++i) {
      result_.row(i) = (result_.row(i).array() - result_.row(i).maxCoeff()).exp();
      result_.row(i) /= result_.row(i).sum();
    }
    const View<const float> all{result_.data(), static_cast<std::uint32_t>(result_.size())};
    return {layer, all, all};
  }

 private:
  std::uint32_t experts_;
  Matrix gates_, result_;
};

}  // namespace ferry
