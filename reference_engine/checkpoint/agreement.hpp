/// @file
/// Whether a checkpoint's weights are those that its config.json describes.
#pragma once
#include "checkpoint/model_config.hpp"
#include "checkpoint/safetensors.hpp"

namespace ferry::engine {

/// Refuses weights that config.json denies, which would change what the model computes if they were used: an
/// `lm_head.weight` beside tied embeddings that differs from them, and biases of queries, keys and values of a model
/// without them. Throws InputError that names the tensor and what would work. Keeps no copy of the weights.
void check_agreement(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace ferry::engine
