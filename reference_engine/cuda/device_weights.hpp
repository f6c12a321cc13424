/// @file
/// What a model keeps on a CUDA device beside its experts.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model_config.hpp"
#include "cuda/workspace.hpp"

namespace ferry::engine::cuda {

struct NormWeights {
  const float *weight = nullptr, *bias = nullptr;
};

struct LayerWeights {
  NormWeights attention_norm, mlp_norm, attention_behind, mlp_behind;  ///< null where there is none
  NormWeights experts_norm, experts_behind, shared_behind;             ///< likewise
  float scale = 1;                                                     ///< of the hidden states behind it
  DenseWeight qkv, o;  ///< the rows of q, k and v one behind the other; without attention those of all channels
  const float *qkv_bias = nullptr, *o_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *sinks = nullptr;
  DenseWeight output_gate;  ///< by the delta rule, too
  const float* output_gate_bias = nullptr;
  DenseWeight rates;  ///< of the delta rule, and what it, or a convolution, has beside matrices
  DeltaWeights delta;
  // Of latent attention: what makes the vectors, their norms, and each head's matrices
  DenseWeight q_down, q, kv_down;
  const float *q_down_bias = nullptr, *q_down_norm = nullptr, *kv_bias = nullptr, *kv_norm = nullptr;
  const std::byte *keys = nullptr, *values = nullptr;  ///< [heads, rank, plain], [heads, value_dim, rank]
  FloatType heads_type = FloatType::f32;
  /// The shared expert, or in a layer without experts its MLP; gate, up and down one behind the other, as a routed expert's.
  const std::byte* mlp = nullptr;
  ExpertShape mlp_shape;
  DenseWeight shared_scale;
};

/// As Rope has them.
struct Frequencies {
  const float *usual = nullptr, *of_long = nullptr;
};

struct DeviceWeights {
  DeviceBlock block;  ///< where all of them are
  std::vector<LayerWeights> layers;
  DenseWeight embedding, head;
  DenseWeight gates;             ///< of all layers with experts, so that adjacent ones are one product
  std::uint64_t gate_bytes = 0;  ///< of a layer's
  NormWeights norm;
  NormWeights plain;  ///< one whose weights are all 1, where gates read by such a norm
  Frequencies frequency, window_frequency;
  const float* head_bias = nullptr;
  std::uint64_t dense_bytes = 0, dense_weights = 0;  ///< but for the gates
};

/// Reads them. Throws InputError for a model whose sizes or types the device's kernels do not compute, or if there is no
/// room.
DeviceWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                           const std::shared_ptr<Account>& account);

}  // namespace ferry::engine::cuda
