#include "checkpoint/model_config.hpp"

#include <fmt/format.h>

#include "support/errors.hpp"
#include "support/json.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t largest = 1U << 20U;  // of any dimension; keeps products of two within 64 bits with ease

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  std::error_code none;
  if (!std::filesystem::exists(path, none) && !none) {
    throw InputError(path.string() + ": not found; --model names a folder with config.json and model.safetensors");
  }
  const Json root = read_json(path);
  const Fields f(root, path.string());
  ModelConfig c;

  const Json& names = f.at("architectures");
  if (!names.is_array() || names.size() != 1 || !names[0].is_string()) f.refuse("architectures", "one name in a list");
  c.architecture_name = names[0].get<std::string>();
  if (c.architecture_name == "Qwen2MoeForCausalLM") {
    c.architecture = Architecture::qwen2_moe;
  } else if (c.architecture_name == "MixtralForCausalLM") {
    c.architecture = Architecture::mixtral;
  } else {
    f.refuse("architectures", "Qwen2MoeForCausalLM or MixtralForCausalLM");
  }

  c.layers = f.whole("num_hidden_layers", 1, 4096);
  c.hidden = f.whole("hidden_size", 1, largest);
  c.heads = f.whole("num_attention_heads", 1, 4096);
  c.kv_heads = f.has("num_key_value_heads") ? f.whole("num_key_value_heads", 1, 4096) : c.heads;
  if (c.heads % c.kv_heads != 0) f.refuse("num_key_value_heads", fmt::format("a divisor of {} heads", c.heads));
  if (f.has("head_dim")) {
    c.head_dim = f.whole("head_dim", 2, 4096);
  } else {
    if (c.hidden % c.heads != 0) f.refuse("hidden_size", fmt::format("a multiple of {} heads", c.heads));
    c.head_dim = c.hidden / c.heads;
  }
  if (c.head_dim % 2 != 0) f.refuse("head_dim", "an even number");
  c.top_k = f.whole("num_experts_per_tok", 1, 65534);
  c.vocabulary = f.whole("vocab_size", 2, 1U << 24U);
  c.context = f.whole("max_position_embeddings", 1, 1U << 28U);
  c.norm_epsilon = f.number("rms_norm_eps", 0);
  c.rope_theta = f.number("rope_theta", 0);
  c.tied_embeddings = f.flag("tie_word_embeddings", false);
  c.begin_token = f.whole("bos_token_id", 0, c.vocabulary - 1);
  c.end_token = f.whole("eos_token_id", 0, c.vocabulary - 1);

  if (f.text("hidden_act") != "silu") f.refuse("hidden_act", "\"silu\"");
  for (const char* field : {"rope_scaling", "rope_parameters", "quantization_config"}) {
    if (f.has(field)) f.refuse(field, "null, it is not supported");
  }
  for (const char* field : {"attention_bias", "use_sliding_window"}) {
    if (f.flag(field, false)) f.refuse(field, "false, it is not supported");
  }

  if (c.architecture == Architecture::qwen2_moe) {
    c.experts = f.whole("num_experts", 1, 65534);
    c.expert_width = f.whole("moe_intermediate_size", 1, largest);
    c.shared_width = f.whole("shared_expert_intermediate_size", 1, largest);
    c.renormalise = f.flag("norm_topk_prob", false);
    if (f.has("decoder_sparse_step") && f.whole("decoder_sparse_step", 0, 4096) != 1) {
      f.refuse("decoder_sparse_step", "1, every layer must be an MoE layer");
    }
    if (f.has("mlp_only_layers") && !(f.at("mlp_only_layers").is_array() && f.at("mlp_only_layers").empty())) {
      f.refuse("mlp_only_layers", "an empty list, every layer must be an MoE layer");
    }

  } else {
    c.experts = f.whole("num_local_experts", 1, 65534);
    c.expert_width = f.whole("intermediate_size", 1, largest);
    c.renormalise = true;
    if (f.has("sliding_window")) f.refuse("sliding_window", "null");
  }
  if (c.top_k > c.experts) {
    f.refuse("num_experts_per_tok", fmt::format("at most the number of experts, {}", c.experts));
  }
  return c;
}

std::string gate_name(Architecture architecture, std::uint32_t layer) {
  return fmt::format("model.layers.{}.{}.weight", layer,
                     architecture == Architecture::mixtral ? "block_sparse_moe.gate" : "mlp.gate");
}

}  // namespace ferry::engine
