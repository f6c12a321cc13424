/// @file
/// Predicted gate scores on the host: the gates of all layers as one matrix. Needs Eigen.
#pragma once
#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ferry/error.hpp"
#include "ferry/gate/gate_rule.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// Makes the rows that a gate predictor reads: scores of `W_m x`, by the model's rule (a softmax unless `set_rule` said
/// otherwise), for the layers m that follow, from one gate input. W_m is the gate of layer m itself, or a matrix that was
/// trained to predict it from so many layers before (`set_learned`), which always gives a softmax.
///
/// Source: Fate section 4.3 (one layer ahead), HOBBIT section 3.3 (several at once, "stacking").
/// The gates lie stacked in one [layers * E, d] matrix, so that scores of p adjacent layers are one product. For one
/// row it is a matrix-vector product; for two to seven rows it is one of each row and gate, since a matrix product
/// would not pay for its copies. They equal p single products but for rounding: for fewer than 8 rows, if d is a
/// multiple of 16, bit for bit.
/// Complexity: O(rows * p * E * d). Not thread-safe where it owns the result; with a result of the caller's own,
/// `scores` is const and any number of threads may call it.
class GateBank {
 public:
  /// Row-major, as checkpoints store gates.
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// What one call of `scores` makes, in memory that the next one uses again.
  struct Result {
    std::vector<Scores> scores;  ///< [p], views of `weights` and `selects`
    Matrix weights;              ///< [p * rows, E]: a layer's rows are adjacent
    Matrix selects;              ///< likewise, where the rule has them separate
    Eigen::ArrayXf logits;       ///< [rows, p * E], of many rows [p * E, rows]
    Eigen::ArrayXf row;          ///< [E], of one row and layer
  };

  /// All weights are 0 until they are set.
  GateBank(std::uint32_t layers, std::uint32_t experts, std::uint32_t hidden)
      : layers_(layers), experts_(experts), gates_(Matrix::Zero(Eigen::Index{layers} * experts, hidden)) {}

  /// How many layers have a gate here.
  [[nodiscard]] std::uint32_t layers() const { return layers_; }
  /// How many rows each gate has.
  [[nodiscard]] std::uint32_t experts() const { return experts_; }

  /// The gate of a layer itself, [E, d].
  [[nodiscard]] Matrix of(std::uint32_t layer) const {
    return gates_.middleRows(Eigen::Index{layer} * experts_, experts_);
  }

  /// From now on layers up to `depth` ahead are predicted by matrices of their own, which `set_learned` gives; until then
  /// they are 0.
  void expect_learned(std::uint32_t depth) {
    depth_ = depth;
    learned_.setZero(Eigen::Index{layers_} * depth * experts_, gates_.cols());
  }
  /// `gate`: [E, d], predicts `layer` from the gate input of layer `layer - distance`, which the model must have; `distance`
  /// is 1 to the depth.
  void set_learned(std::uint32_t layer, std::uint32_t distance, const Eigen::Ref<const Matrix>& gate) {
    learned_.middleRows((Eigen::Index{layer - distance} * depth_ + distance - 1) * experts_, experts_) = gate;
  }

  /// `gate`: [E, d], row-major, of one layer.
  void set(std::uint32_t layer, const Eigen::Ref<const Matrix>& gate) {
    gates_.middleRows(Eigen::Index{layer} * experts_, experts_) = gate;
  }

  /// How logits become scores. `biases`: [layers, E] added to logits; `choice_biases`: likewise, to what is chosen by. Either
  /// may be empty: none.
  void set_rule(const GateRule& rule, const Matrix& biases = {}, const Matrix& choice_biases = {}) {
    rule_ = rule;
    biases_ = biases;
    choice_biases_ = choice_biases;
  }

  /// Scores [rows, E] that the gate of `layer` would give to `input` [rows, d], or that it is predicted to give where
  /// the bank has learned: then `input` is the one of the layer before. Valid until the next call.
  Scores scores(std::uint16_t layer, const Eigen::Ref<const Matrix>& input) { return scores(layer, 1, input)[0]; }

  /// The same for `count` layers from `first_layer` on, as one product. Where the bank has learned fewer layers ahead than
  /// `count`, the others' own gates follow as a second product. Throws std::out_of_range if the bank has fewer layers.
  /// Valid until the next call.
  View<const Scores> scores(std::uint16_t first_layer, std::uint32_t count, const Eigen::Ref<const Matrix>& input) {
    return scores(first_layer, count, input, result_);
  }

  /// The same into a result of the caller's own. Valid until that is used again.
  View<const Scores> scores(std::uint16_t first_layer, std::uint32_t count, const Eigen::Ref<const Matrix>& input,
                            Result& result) const {
    if (count > layers_ || first_layer > layers_ - count) {
      detail::fail<std::out_of_range>("GateBank: scores of " + std::to_string(count) + " layers from layer " +
                                      std::to_string(first_layer) + " on were asked for, there are " +
                                      std::to_string(layers_) + " layers");
    }
    const Eigen::Index rows = input.rows();
    result.weights.resize(count * rows, experts_);
    result.selects.resize(separate() ? count * rows : 0, experts_);
    result.scores.resize(count);
    const std::uint32_t learned = first_layer == 0 ? 0 : std::min(count, depth_);
    if (learned > 0) score(learned_, Eigen::Index{first_layer - 1} * depth_, first_layer, 0, learned, input, result);
    if (learned < count) score(gates_, first_layer + learned, first_layer, learned, count, input, result);
    return {result.scores.data(), count};
  }

 private:
  /// Fills in layers `from` to `to` of a result that begins with `first_layer`, by the gates that stand `place` gates behind
  /// the first of `gates`.
  void score(const Matrix& gates, Eigen::Index place, std::uint32_t first_layer, std::uint32_t from, std::uint32_t to,
             const Eigen::Ref<const Matrix>& input, Result& result) const {
    const Eigen::Index rows = input.rows(), outputs = Eigen::Index{to - from} * experts_;
    multiply(gates.middleRows(place * experts_, outputs), input, result.logits);
    const bool many = rows >= many_rows, own = &gates == &gates_;
    const Eigen::Index to_row = many ? 1 : outputs, to_expert = many ? rows : 1;
    for (std::uint32_t l = from; l < to; ++l) {
      for (Eigen::Index row = 0; row < rows; ++row) {
        // By way of a row of its own: Eigen rounds by alignment and stride, but the place of a row must not matter.
        result.row = Eigen::Map<const Eigen::ArrayXf, 0, Eigen::InnerStride<>>(
            result.logits.data() + row * to_row + Eigen::Index{l - from} * experts_ * to_expert, experts_,
            Eigen::InnerStride<>(to_expert));
        if (own && !plain()) {
          by_rule(first_layer + l, l * rows + row, result);
          continue;
        }
        result.row = (result.row - result.row.maxCoeff()).exp();
        result.weights.row(l * rows + row) = result.row.matrix().transpose() / result.row.sum();
      }
      const auto size = static_cast<std::uint32_t>(rows * experts_);
      const View<const float> weight{result.weights.data() + l * size, size};
      const View<const float> select =
          own && separate() ? View<const float>{result.selects.data() + l * size, size} : weight;
      result.scores[l] = {static_cast<std::uint16_t>(first_layer + l), select, weight};
    }
  }

  [[nodiscard]] bool separate() const { return rule_.separate(choice_biases_.size() > 0); }
  /// A softmax, and nothing else.
  [[nodiscard]] bool plain() const { return rule_.gating == Gating::softmax && !separate() && biases_.size() == 0; }

  /// Turns the logits in `result.row` into row `to` of the result.
  void by_rule(std::uint32_t layer, Eigen::Index to, Result& result) const {
    if (biases_.size() > 0) result.row += biases_.row(layer).transpose().array();
    float* weight = result.weights.row(to).data();
    rule_.score({result.row.data(), experts_}, choice_biases_.size() > 0 ? choice_biases_.row(layer).data() : nullptr,
                separate() ? result.selects.row(to).data() : weight, weight);
  }

  /// `input` [rows, d] times `gates` [outputs, d]: [rows, outputs], of many rows [outputs, rows].
  void multiply(const Eigen::Ref<const Matrix>& gates, const Eigen::Ref<const Matrix>& input,
                Eigen::ArrayXf& logits) const {
    const Eigen::Index rows = input.rows(), outputs = gates.rows();
    logits.resize(rows * outputs);
    if (rows >= many_rows) {  // stored this way round, stacks of all sizes pack well
      Eigen::Map<Eigen::MatrixXf>(logits.data(), rows, outputs).noalias() = input * gates.transpose();
      return;
    }
    const Eigen::Index together = rows == 1 ? outputs : experts_;  // one gate stays in the cache for all rows
    for (Eigen::Index first = 0; first < outputs; first += together) {
      for (Eigen::Index row = 0; row < rows; ++row) {
        logits.segment(row * outputs + first, together).matrix().noalias() =
            gates.middleRows(first, together) * input.row(row).transpose();
      }
    }
  }

  /// From here on a matrix product pays for the copies that Eigen makes of its operands.
  static constexpr Eigen::Index many_rows = 8;

  std::uint32_t layers_, experts_, depth_ = 0;
  Matrix gates_;    ///< [layers * E, d]
  Matrix learned_;  ///< [layers * depth * E, d], by the layer whose input it takes, then by distance
  GateRule rule_;
  Matrix biases_, choice_biases_;  ///< [layers, E] each, or empty
  Result result_;
};

}  // namespace ferry::inline FERRY_ABI
