/// @file
/// The shape of a model, read from a Hugging Face config.json.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace ferry::engine {

enum class Architecture { qwen2_moe, mixtral };

/// In place of a token that a model does not have.
inline constexpr std::uint32_t no_token = 0xffffffff;

struct ModelConfig {
  Architecture architecture = Architecture::mixtral;
  std::string architecture_name;
  std::uint32_t layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::uint32_t experts = 0, top_k = 0, expert_width = 0;
  std::uint32_t shared_width = 0;  ///< 0: no shared expert
  std::uint32_t vocabulary = 0, context = 0;
  std::uint32_t begin_token = 0, end_token = 0;  ///< end_token: no_token if nothing ends a text
  double norm_epsilon = 0, rope_theta = 0;
  bool renormalise = false;  ///< top-k weights divided by their sum
  bool tied_embeddings = false;
  bool qkv_bias = false;  ///< queries, keys and values have biases
};

/// Reads `folder/config.json`. Throws InputError that names the field: missing, of the wrong type or value,
/// or a feature that the engine does not compute (it refuses rather than ignores).
ModelConfig read_model_config(const std::filesystem::path& folder);

/// Name of a layer's gate matrix [experts, hidden] in checkpoints.
std::string gate_name(Architecture architecture, std::uint32_t layer);

}  // namespace ferry::engine
