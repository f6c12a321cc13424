/// @file
/// Whether a checkpoint's weights are those that its config.json describes.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model_config.hpp"

namespace ferry::engine {

/// Once all of a model has been read: refuses weights that it left alone and that would change what it computes if they were
/// used. Those are an `lm_head.weight` beside tied embeddings that differs from them, and tensors of its layers that its
/// family, or its config.json, knows nothing of, as biases. Throws InputError that names the tensor and what would work.
///
/// Returns what else nobody read, a line each, for the user: layers behind the last (of models that predict several tokens),
/// parts for images, fields of config.json that nobody knows. Keeps no copy of the weights.
std::vector<std::string> check_agreement(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace ferry::engine
