/// @file
/// What a GateWatcher saw, as the scores that Ferry's pipelines take.
#pragma once
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "llama_session.hpp"

namespace ferry::llama_cpp {

/// Turns logits into scores by the rule that the graph shows, and predicts with the gates of later layers. What it returns is
/// valid until the next call of the same name.
class GateScores {
 public:
  /// To be made after the first forward pass, which shows the layers. Throws InputError for a rule that Ferry does not have.
  GateScores(const std::vector<WatchedLayer>& layers, const Session& session);

  [[nodiscard]] const ModelShape& shape() const { return shape_; }  ///< max_rows 1
  /// Whether experts are chosen by other scores than those that weigh them.
  [[nodiscard]] bool separate() const { return separate_; }

  /// [rows, experts], with as many columns as the layer with the most experts has.
  Scores of(std::uint16_t layer, const GateRows& rows);
  /// Predicted scores of the next `count` layers, from this layer's gate input.
  View<const Scores> predicted(std::uint16_t layer, std::uint16_t count, const GateRows& rows);

 private:
  const std::vector<WatchedLayer>& layers_;
  ModelShape shape_;
  GateRule rule_;
  GateBank gates_;
  GateBank::Matrix biases_, choice_biases_;  ///< [layers, experts], or empty
  bool separate_ = false;
  std::vector<float> logits_, select_, weight_;
};

}  // namespace ferry::llama_cpp
