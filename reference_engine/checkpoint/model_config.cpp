#include "checkpoint/model_config.hpp"

#include <fmt/format.h>

#include "support/errors.hpp"
#include "support/json.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t largest = 1U << 20U;  // of any dimension; keeps products of two within 64 bits with ease

/// From rope_parameters, where transformers 5 writes it, or from the top level, where it was before.
double read_rope_theta(const Fields& f, const std::string& where) {
  if (!f.has("rope_parameters")) return f.number("rope_theta", 0);
  const Json& parameters = f.at("rope_parameters");
  const Fields rope(parameters, where + ": rope_parameters");
  for (const char* field : {"rope_type", "type"}) {
    if (rope.has(field) && rope.at(field) != "default") rope.refuse(field, "\"default\", no other is supported");
  }
  // transformers ignores what the type does not use, and computes something else than its writer meant.
  for (const auto& [name, value] : parameters.items()) {
    const bool known = name == "rope_type" || name == "type" || name == "rope_theta";
    if (!known && !value.is_null()) rope.refuse(name, "no more than a rope_type \"default\" and its rope_theta");
  }
  if (!f.has("rope_theta")) return rope.number("rope_theta", 0);
  const double theta = f.number("rope_theta", 0);
  if (rope.has("rope_theta") && rope.number("rope_theta", 0) != theta) {
    f.refuse("rope_theta", fmt::format("{} as in rope_parameters, or none here", rope.number("rope_theta", 0)));
  }
  return theta;
}

/// transformers 5 lists what each layer attends to.
void check_layer_types(const Fields& f, std::uint32_t layers) {
  if (!f.has("layer_types")) return;
  const Json& types = f.at("layer_types");
  if (!types.is_array() || types.size() != layers) {
    f.refuse("layer_types", fmt::format("a list of {} times \"full_attention\", once for each layer", layers));
  }
  for (std::size_t l = 0; l < types.size(); ++l) {
    if (types[l] == "full_attention") continue;
    f.refuse("layer_types", fmt::format("\"full_attention\" for every layer, where layer {} has {:.40}, which is not "
                                        "supported",
                                        l, types[l].dump()));
  }
}

/// A number, or a list of one; null where nothing ends a text.
std::uint32_t read_end_token(const Fields& f, std::uint32_t vocabulary) {
  const Json& field = f.at("eos_token_id");
  if (field.is_null()) return no_token;
  const Json& token = field.is_array() && field.size() == 1 ? field[0] : field;
  if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= vocabulary) {
    f.refuse("eos_token_id",
             fmt::format("one whole number from 0 to {}, by itself or in a list, or null", vocabulary - 1));
  }
  return token.get<std::uint32_t>();
}

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
  c.rope_theta = read_rope_theta(f, path.string());
  c.tied_embeddings = f.flag("tie_word_embeddings", false);
  if (!f.has("bos_token_id")) f.refuse("bos_token_id", "a whole number, the token that every text begins with");
  c.begin_token = f.whole("bos_token_id", 0, c.vocabulary - 1);
  c.end_token = read_end_token(f, c.vocabulary);

  if (f.text("hidden_act") != "silu") f.refuse("hidden_act", "\"silu\"");
  for (const char* field : {"rope_scaling", "quantization_config"}) {
    if (f.has(field)) f.refuse(field, "null, it is not supported");
  }
  for (const char* field : {"attention_bias", "use_sliding_window"}) {
    if (f.flag(field, false)) f.refuse(field, "false, it is not supported");
  }
  check_layer_types(f, c.layers);

  if (c.architecture == Architecture::qwen2_moe) {
    c.experts = f.whole("num_experts", 1, 65534);
    c.expert_width = f.whole("moe_intermediate_size", 1, largest);
    c.shared_width = f.whole("shared_expert_intermediate_size", 1, largest);
    c.renormalise = f.flag("norm_topk_prob", false);
    c.qkv_bias = f.flag("qkv_bias", true);
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
    if (f.has("sliding_window")) f.refuse("sliding_window", "null, sliding attention is not supported");
    if (f.flag("qkv_bias", false)) f.refuse("qkv_bias", "false, a Mixtral has no biases");
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
