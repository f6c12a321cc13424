/// @file
/// Predicted gate scores on the host: the gates of all layers as one matrix. Needs Eigen.
#pragma once
#include <Eigen/Core>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ferry/model.hpp"

namespace ferry {

/// Makes the rows that a gate predictor reads: `softmax(W_m x)` for the layers m that follow, from one gate input.
///
/// Source: Fate section 4.3 (one layer ahead), HOBBIT section 3.3 (several at once, "stacking").
/// The gates lie stacked in one [layers * E, d] matrix, so that scores of p adjacent layers are one product: for one
/// row a matrix-vector product. They equal p single products but for rounding; for one row with d a multiple of 16 bit
/// for bit.
/// Complexity: O(rows * p * E * d). Not thread-safe where it owns the result; with a result of the caller's own,
/// `scores` is const and any number of threads may call it.
class GateBank {
 public:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// What one call of `scores` makes, in memory that the next one uses again.
  struct Result {
    std::vector<Scores> scores;                        ///< [p], views of `weights`
    Matrix weights;                                    ///< [p * rows, E]: a layer's rows are adjacent
    Matrix logits;                                     ///< [rows, p * E]
    Eigen::Array<float, 1, Eigen::Dynamic> exponents;  ///< [E], of one row and layer
  };

  GateBank(std::uint32_t layers, std::uint32_t experts, std::uint32_t hidden)
      : layers_(layers), experts_(experts), gates_(Eigen::Index{layers} * experts, hidden) {}

  [[nodiscard]] std::uint32_t layers() const { return layers_; }
  [[nodiscard]] std::uint32_t experts() const { return experts_; }

  /// `gate`: [E, d], row-major, of one layer.
  void set(std::uint32_t layer, const Eigen::Ref<const Matrix>& gate) {
    gates_.middleRows(Eigen::Index{layer} * experts_, experts_) = gate;
  }

  /// Softmax scores [rows, E] that the gate of `layer` would give to `input` [rows, d].
  /// Valid until the next call.
  Scores scores(std::uint16_t layer, const Eigen::Ref<const Matrix>& input) { return scores(layer, 1, input)[0]; }

  /// The same for `count` layers from `first_layer` on, as one product. Throws std::out_of_range if there are fewer.
  /// Valid until the next call.
  View<const Scores> scores(std::uint16_t first_layer, std::uint32_t count, const Eigen::Ref<const Matrix>& input) {
    return scores(first_layer, count, input, result_);
  }

  /// The same into a result of the caller's own. Valid until that is used again.
  View<const Scores> scores(std::uint16_t first_layer, std::uint32_t count, const Eigen::Ref<const Matrix>& input,
                            Result& result) const {
    if (count > layers_ || first_layer > layers_ - count) {
      throw std::out_of_range("GateBank: scores of " + std::to_string(count) + " layers from layer " +
                              std::to_string(first_layer) + " on were asked for, there are " + std::to_string(layers_) +
                              " layers");
    }
    const Eigen::Index rows = input.rows();
    const auto gates = gates_.middleRows(Eigen::Index{first_layer} * experts_, Eigen::Index{count} * experts_);
    result.logits.resize(rows, gates.rows());
    if (rows == 1) {
      result.logits.row(0).transpose().noalias() = gates * input.row(0).transpose();
    } else {
      result.logits.noalias() = input * gates.transpose();
    }
    result.weights.resize(count * rows, experts_);
    result.scores.resize(count);
    for (std::uint32_t l = 0; l < count; ++l) {
      for (Eigen::Index row = 0; row < rows; ++row) {
        const auto logits = result.logits.row(row).segment(Eigen::Index{l} * experts_, experts_).array();
        // By way of an aligned row: Eigen rounds what lies off alignment otherwise, and the place must not matter.
        result.exponents = (logits - logits.maxCoeff()).exp();
        result.weights.row(l * rows + row) = result.exponents / result.exponents.sum();
      }
      const View<const float> all{result.weights.data() + l * rows * experts_,
                                  static_cast<std::uint32_t>(rows * experts_)};
      result.scores[l] = {static_cast<std::uint16_t>(first_layer + l), all, all};
    }
    return {result.scores.data(), count};
  }

 private:
  std::uint32_t layers_, experts_;
  Matrix gates_;  ///< [layers * E, d]
  Result result_;
};

}  // namespace ferry
