/// @file
/// Gates that are trained to predict: from a layer's gate input to the scores of the layers behind it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "support/output_file.hpp"

#include "inference/model.hpp"
#include "math/matrix.hpp"

namespace ferry::engine {

/// What a model's gates were given and what they said, over the same tokens: [layers] of [tokens, hidden] and of
/// [tokens, experts].
struct GateSamples {
  std::vector<Matrix> inputs, scores;

  [[nodiscard]] Eigen::Index tokens() const { return inputs.empty() ? 0 : inputs[0].rows(); }
};

/// Runs a text through the model, resident, in windows that are sequences of their own, and adds what its gates see.
/// `progress` takes the tokens so far; if it returns false, nothing is added. Throws InputError for a window that the model
/// cannot have.
bool add_samples(Model& model, const std::vector<std::uint32_t>& text, std::uint32_t window, GateSamples& samples,
                 const std::function<bool(std::uint64_t done)>& progress);

/// Throws InputError if so many samples are too few to train on and to hold some out.
void need_samples(std::uint64_t count);

struct GateTraining {
  std::uint32_t epochs = 12, batch = 256;
  float rate = 1e-3F;  ///< of Adam, falling to 0 as half a cosine
  std::uint64_t seed = 1;
};

/// Softmax regression: the gate [experts, hidden] whose softmax over `inputs` [n, hidden] diverges least from `targets`
/// [n, experts], each a distribution, by Adam from `initial` on. The same arguments give the same gate on the same machine.
/// O(epochs * n * experts * hidden).
Matrix train_gate(MatrixRef inputs, MatrixRef targets, const Matrix& initial, const GateTraining& training);

/// How well a gate predicts.
struct GateQuality {
  double divergence = 0;    ///< KL(targets || predicted) in bits, in the mean
  double recall = 0;        ///< of the k highest targets, how many are among the k highest predictions
  double recall_twice = 0;  ///< among the 2k highest

  GateQuality& operator+=(const GateQuality& other) {
    divergence += other.divergence;
    recall += other.recall;
    recall_twice += other.recall_twice;
    return *this;
  }
  GateQuality operator/(double by) const { return {divergence / by, recall / by, recall_twice / by}; }
};
GateQuality quality_of(const Matrix& gate, const Matrix& inputs, const Matrix& targets, std::uint32_t k);

/// For each layer, the gates that predict it from 1, 2, ... layers before.
struct LearnedGates {
  struct Gate {
    std::uint32_t layer = 0, distance = 1;  ///< predicted; how many layers before it the input is
    Matrix matrix;                          ///< [experts, hidden]
    GateQuality before, after;              ///< over tokens that were held out: of the layer's own gate, of this one
  };
  std::vector<Gate> gates;

  /// Throws InputError if the disk refuses.
  void write(OutputFile& out, const std::string& model) const;
};

/// Trains all of them on nine tenths of the samples, from all over the texts, and measures them on the rest; one that diverges
/// more there than the layer's own gate is replaced by that. Nothing if `progress` returned false.
std::optional<LearnedGates> train_gates(const GateSamples& samples, const std::vector<Matrix>& own_gates,
                                        std::uint32_t depth, std::uint32_t k, const GateTraining& training,
                                        const std::function<bool(std::uint64_t done, std::uint64_t all)>& progress);

}  // namespace ferry::engine
