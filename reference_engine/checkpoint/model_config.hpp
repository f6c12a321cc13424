/// @file
/// The shape of a model and its arithmetic, read from a Hugging Face config.json.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/rope.hpp"
#include "ferry/codec/pass_through.hpp"
#include "ferry/gate/gate_rule.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// In place of a token that a model does not have.
inline constexpr std::uint32_t no_token = 0xffffffff;

/// Under which names a family's checkpoints have their tensors, as parts of names. Those of a layer follow "model.layers.N.".
struct TensorNames {
  std::string model = "model.", head = "lm_head.", norm = "norm";  ///< the last norm, behind `model`
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";  ///< ".weight", ".bias"
  std::string attention_norm_behind, mlp_norm_behind;                                     ///< where there are two each
  /// Of experts beside an MLP with norms of its own: of what they read, of what they give, and of what the MLP gives.
  std::string experts_norm, experts_norm_behind, shared_norm_behind;
  std::string layer_scale;                  ///< one number, with which a layer ends; empty: none
  std::string output = "self_attn.o_proj";  ///< ".weight", ".bias"
  std::string output_gate;                  ///< a matrix of its own; empty: gates come with the queries
  std::string q_norm = "self_attn.q_norm.weight", k_norm = "self_attn.k_norm.weight";
  std::string gate = "mlp.gate.weight", gate_bias, choice_bias;
  std::string gate_scale;                ///< [hidden], of what the gate reads; empty: none
  std::string expert_scale;              ///< [experts], of what experts give; empty: none
  std::string experts = "mlp.experts.";  ///< then "E.", a part, ".weight"
  std::array<std::string, 3> parts{"gate_proj", "up_proj", "down_proj"};
  std::array<std::string, 2> fused{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};  ///< all experts of a layer
  std::string shared = "mlp.shared_experts.", shared_scale;                               ///< then a part, ".weight"
  std::array<std::string, 2> shared_fused;                    ///< instead: gate above up, and down
  std::string dense = "mlp.";                                 ///< of layers without experts; then a part, ".weight"
  std::string mamba = "mamba.", mamba_in = "mamba.in_proj.";  ///< of Mamba's layers, and of their first matrix
  std::array<std::string, 3> mlp_parts{"gate_proj", "up_proj", "down_proj"};  ///< of shared experts and dense MLPs
};

/// How the matrices of a layer's experts lie in a checkpoint.
enum class ExpertStorage : std::uint8_t {
  separate,       ///< gate and up [width, hidden], down [hidden, width], each of each expert a tensor of its own
  fused_rows,     ///< [experts, 2 * width, hidden], gate above up, and [experts, hidden, width]
  fused_columns,  ///< [experts, hidden, 2 * width], gate before up, and [experts, width, hidden]
  /// The same with gate and up in turn; with biases [experts, 2 * width], likewise in turn, and [experts, hidden]
  interleaved_columns,
  /// [experts, 2 * width, hidden / 32, 16 bytes], a row of gate and one of up in turn, and [experts, hidden, width / 32, 16
  /// bytes]: MXFP4, with exponents in tensors of their own
  interleaved_blocks,
  fused_parts  ///< [experts, width, hidden] of gate, of up, and [experts, hidden, width] of down, with biases likewise: GGUF
};

/// What an expert, or an MLP, makes of its gate and up before down: silu(gate) * up.
struct Glu {
  bool clamped =
      false;  ///< instead: gate * sigmoid(alpha * gate) * (up + 1), both within `limit`, gate only from above
  float alpha = 1, limit = 0;
  bool weighs_input =
      false;          ///< a row's weight for the expert is multiplied with what it reads, and not with what it gives
  bool gelu = false;  ///< GELU by its approximation with a tanh in the place of SiLU
  friend bool operator==(const Glu&, const Glu&) = default;
};

enum class Norm : std::uint8_t {
  rms,           ///< divided by the root of the mean square
  rms_plus_one,  ///< the same, with weights that are stored less 1
  mean           ///< the mean taken away first, and a bias added last: PyTorch's LayerNorm
};

/// Where a layer's norms are: before attention and experts, or behind them, ahead of the sum, or in both places.
enum class NormPlace : std::uint8_t { before, behind, both };

/// Norms of queries and keys.
enum class HeadNorm : std::uint8_t {
  none,
  heads_before_rope,  ///< each head by itself
  heads_behind_rope,
  plain_behind_rope,  ///< the same without weights, where positions turn
  all_before_rope     ///< all heads of a token together
};

/// Keys and values of all heads are made of one vector, and a key that all heads share.
struct LatentAttention {
  std::uint32_t rank = 0;        ///< 0: keys and values are made as usual
  std::uint32_t query_rank = 0;  ///< 0: so are queries
  std::uint32_t plain_dim = 0;   ///< of a head of queries and keys, beside `Rope::width`
  bool bias = false;             ///< of what makes both vectors, and of what attention gives
};

/// Queries grow with their position: by log(1 + floor((position + first) / floor)) * by + 1.
struct Tuning {
  double by = 0, floor = 1;   ///< 0: they do not
  std::uint32_t first = 0;    ///< what counts as the first token's position
  bool where_turned = false;  ///< also in layers where positions turn them; else in the others alone
  [[nodiscard]] bool is_in(bool turns) const { return by > 0 && (!turns || where_turned); }
  [[nodiscard]] float at(std::uint32_t position) const {
    const float floors =
        std::floor((static_cast<float>(position) + static_cast<float>(first)) / static_cast<float>(floor));
    return std::log1p(floors) * static_cast<float>(by) + 1;
  }
};

enum class LinearRule : std::uint8_t {
  gated_delta,  ///< one matrix a head, which each token changes (Gated DeltaNet)
  mamba,        ///< likewise, by Mamba 2's selective state space
  convolution   ///< the last tokens of a short convolution alone, between two gates (LFM2): nothing else but `kernel`
};

/// What a layer has in the place of attention: a memory that does not grow.
struct LinearAttention {
  LinearRule rule = LinearRule::gated_delta;
  /// Each key head serves as many value heads. Of Mamba: groups of B and C, and heads.
  std::uint32_t key_heads = 0, value_heads = 0;
  std::uint32_t key_dim = 0, value_dim = 0;
  std::uint32_t kernel = 0;  ///< tokens that a convolution over queries, keys and values sees
  bool fused = false;        ///< projections come as two tensors, by key head
  bool flat = false;         ///< kernels are [channels, kernel], and not [channels, 1, kernel]
  bool tiled = false;        ///< value head v belongs to key head v modulo their number; else neighbours share one
  bool bias = false;         ///< of both products, Mamba's
  bool kernel_bias = false;  ///< of the convolution, Mamba's
  /// Of queries, of keys, and of values.
  [[nodiscard]] std::uint32_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

struct LayerConfig {
  bool moe = true;                           ///< else a dense MLP
  bool linear = false;                       ///< LinearAttention in the place of attention
  bool turns = true;                         ///< queries and keys are turned by their position
  bool keys_are_values = false;              ///< values are the keys, as these are before norms and positions
  std::uint32_t kv_heads = 0, head_dim = 0;  ///< of attention
  std::uint32_t window = 0;                  ///< tokens that one attends to, with itself; 0: all before it
  std::uint32_t chunk = 0;                   ///< a token attends to those of its chunk of so many; 0: there are none
  std::uint32_t experts = 0, top_k = 0, expert_width = 0, shared_width = 0;  ///< of a layer with experts

  /// How many tokens one attends to at most, with itself; 0: any number.
  [[nodiscard]] std::uint32_t reach() const { return std::max(window, chunk); }
};

struct ModelConfig {
  std::string architecture_name;
  TensorNames names;
  /// What transformers 5 calls them inside, and in files with `save_original_format=False`, where that differs: see `take_names`.
  std::optional<TensorNames> inner_names;
  std::vector<LayerConfig> layer;         ///< [layers]
  std::vector<std::uint32_t> moe_layers;  ///< numbers of those with experts, ascending: what `ExpertId::layer` counts
  std::uint32_t layers = 0, hidden = 0, heads = 0;
  std::uint32_t kv_heads = 0;                              ///< where layers differ, of those with a window
  std::uint32_t head_dim = 0;                              ///< of queries and keys, likewise
  std::uint32_t value_dim = 0;                             ///< of a head of values
  std::uint32_t experts = 0, top_k = 0, expert_width = 0;  ///< where layers differ, the largest
  std::uint32_t shared_width = 0;                          ///< likewise; 0: no shared expert
  std::uint32_t dense_width = 0;                           ///< of layers without experts
  std::uint32_t vocabulary = 0, context = 0;
  std::uint32_t begin_token = no_token;   ///< that a text begins with; no_token: none does
  std::vector<std::uint32_t> end_tokens;  ///< each ends a text
  double norm_epsilon = 0;
  Norm norm = Norm::rms;
  NormPlace norm_place = NormPlace::before;
  Rope rope;
  std::optional<Rope> window_rope;  ///< of layers with a window, where theirs is another
  LatentAttention latent;
  LinearAttention linear;
  bool output_gate = false;  ///< there are gates beside the queries, whose sigmoids weigh what attention gives
  Tuning tuning;
  HeadNorm head_norm = HeadNorm::none;
  bool value_norm = false;     ///< values are divided by the root of their mean square, head by head
  double attention_scale = 0;  ///< of a query's product with a key
  double clip = 0;             ///< queries, keys and values are within -clip and clip; 0: wherever they are
  bool sinks = false;          ///< each head has a logit that takes a share of the attention and gives nothing
  GateRule gate;
  bool renormalise = false;                ///< top-k weights divided by their sum
  double routed_scale = 1;                 ///< and multiplied by this
  double least_sum = 0, added_to_sum = 0;  ///< as in `ferry::Shape`
  ExpertStorage storage = ExpertStorage::separate;
  bool expert_bias = false;
  bool one_scale = false;  ///< FP8 with one scale for each matrix; else one for 128 rows and columns
  Glu glu;
  bool tied_embeddings = false;
  bool qkv_bias = false;     ///< queries, keys and values have biases
  bool output_bias = false;  ///< what attention gives has one
  bool head_bias = false;    ///< the logits have
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  /// Of keys and values that are remembered: f32, or f16 where whoever loads the model says so.
  FloatType cache_type = FloatType::f32;
  double logit_cap = 0;              ///< logits are cap * tanh(logit / cap); 0: as they are
  std::vector<std::string> unknown;  ///< fields of config.json that nobody here reads
  std::vector<std::string>
      generation_not_done;  ///< fields of generation_config.json that change texts, and are not computed

  /// "model.layers.3.mlp.gate.weight".
  [[nodiscard]] std::string tensor(std::uint32_t layer_number, const std::string& name) const;
  /// Name of the gate matrix [experts, hidden] of a layer with experts.
  [[nodiscard]] std::string gate_name(std::uint32_t moe_layer) const {
    return tensor(moe_layers[moe_layer], names.gate);
  }
  [[nodiscard]] std::uint32_t moe_layer_count() const { return static_cast<std::uint32_t>(moe_layers.size()); }
  /// What a layer with experts has.
  [[nodiscard]] const LayerConfig& moe(std::uint32_t moe_layer) const { return layer[moe_layers[moe_layer]]; }
  [[nodiscard]] std::vector<std::uint32_t> of_moe_layers(std::uint32_t LayerConfig::*what) const;
  /// Whether layers have different numbers of them, or choose different numbers.
  [[nodiscard]] bool experts_differ() const;
  [[nodiscard]] const Rope& rope_of(const LayerConfig& l) const {
    return l.window > 0 && window_rope ? *window_rope : rope;
  }
  [[nodiscard]] std::uint64_t routed_experts() const;
  [[nodiscard]] bool ends(std::uint32_t token) const;
};

/// Reads the config.json of a folder, or the metadata of a GGUF file; tokens that end a text also from generation_config.json.
/// Throws InputError that names the field: missing, of the
/// wrong type or value, or a feature that the engine does not compute (it refuses rather than ignores).
ModelConfig read_model_config(const std::filesystem::path& model);
/// The same of what config.json has; `where` begins messages.
ModelConfig config_from(const Json& config, const std::string& where);

/// The architectures that `read_model_config` reads, in the order of the alphabet.
std::vector<std::string> supported_architectures();

}  // namespace ferry::engine
