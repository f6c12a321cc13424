#include "checkpoint/gguf_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr const char* rope_divisors = "rope_freqs.weight";

constexpr std::pair<const char*, const char*> outer_names[] = {{"token_embd.", "model.embed_tokens."},
                                                               {"output_norm.", "model.norm."},
                                                               {"token_embd_norm.", "model.norm."},  // LFM2's last one
                                                               {"output.", "lm_head."}};
/// Names behind "blk.N."; the first prefix that matches counts.
constexpr std::pair<const char*, const char*> layer_names[] = {{"attn_norm.", "input_layernorm."},
                                                               {"ffn_norm.", "post_attention_layernorm."},
                                                               {"post_attention_norm.", "post_attention_layernorm."},
                                                               {"post_ffw_norm.", "post_mlp_layernorm."},
                                                               {"attn_q.", "self_attn.q_proj."},
                                                               {"attn_k.", "self_attn.k_proj."},
                                                               {"attn_v.", "self_attn.v_proj."},
                                                               {"attn_output.", "self_attn.o_proj."},
                                                               {"attn_q_norm.", "self_attn.q_norm."},
                                                               {"attn_k_norm.", "self_attn.k_norm."},
                                                               {"attn_sinks.weight", "self_attn.sinks"},
                                                               {"attn_q_a.", "self_attn.q_a_proj."},
                                                               {"attn_q_b.", "self_attn.q_b_proj."},
                                                               {"attn_q_a_norm.", "self_attn.q_a_layernorm."},
                                                               {"attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa."},
                                                               {"attn_kv_a_norm.", "self_attn.kv_a_layernorm."},
                                                               {"attn_kv_b.", "self_attn.kv_b_proj."},
                                                               {"attn_k_b.", "self_attn.k_b_proj."},
                                                               {"attn_v_b.", "self_attn.v_b_proj."},
                                                               {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate."},
                                                               {"ffn_gate_inp.", "mlp.gate."},
                                                               {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
                                                               {"exp_probs_b", "mlp.gate.e_score_correction_bias"},
                                                               {"ffn_gate_exps.", "mlp.experts.gate_proj."},
                                                               {"ffn_gate_up_exps.", "mlp.experts.gate_up_proj."},
                                                               {"ffn_up_exps.", "mlp.experts.up_proj."},
                                                               {"ffn_down_exps.", "mlp.experts.down_proj."},
                                                               {"ffn_gate_shexp.", "mlp.shared_experts.gate_proj."},
                                                               {"ffn_up_shexp.", "mlp.shared_experts.up_proj."},
                                                               {"ffn_down_shexp.", "mlp.shared_experts.down_proj."},
                                                               {"attn_qkv.", "linear_attn.in_proj_qkv."},
                                                               {"ssm_in.", "linear_attn.in_proj_qkvz."},
                                                               {"attn_gate.", "linear_attn.in_proj_z."},
                                                               {"ssm_ba.", "linear_attn.in_proj_ba."},
                                                               {"ssm_beta.", "linear_attn.in_proj_b."},
                                                               {"ssm_alpha.", "linear_attn.in_proj_a."},
                                                               {"ssm_conv1d.", "linear_attn.conv1d."},
                                                               {"ssm_dt.bias", "linear_attn.dt_bias"},
                                                               {"ssm_a", "linear_attn.A"},
                                                               {"ssm_d", "linear_attn.D"},
                                                               {"ssm_norm.", "linear_attn.norm."},
                                                               {"ssm_out.", "linear_attn.out_proj."},
                                                               {"shortconv.conv.", "conv.conv."},
                                                               {"shortconv.in_proj.", "conv.in_proj."},
                                                               {"shortconv.out_proj.", "conv.out_proj."},
                                                               {"ffn_gate.", "mlp.gate_proj."},
                                                               {"ffn_up.", "mlp.up_proj."},
                                                               {"ffn_down.", "mlp.down_proj."}};

template <class Names>
std::string renamed(const std::string& name, const Names& names) {
  for (const auto& [from, to] : names) {
    if (name.rfind(from, 0) == 0) return to + name.substr(std::string(from).size());
  }
  return "";
}

/// Old files have one tensor for each expert, as "ffn_up.3.weight".
bool is_of_one_expert(const std::string& name) {
  const std::size_t dot = name.find('.');
  return name.rfind("ffn_", 0) == 0 && dot + 1 < name.size() && name[dot + 1] >= '0' && name[dot + 1] <= '9';
}
std::string of_one_expert(const std::string& name) {
  const std::size_t dot = name.find('.'), behind = name.find('.', dot + 1);
  const std::string rest = behind == std::string::npos ? "" : name.substr(behind);
  return "mlp.experts." + name.substr(dot + 1, behind - dot - 1) + "." + name.substr(4, dot - 4) + "_proj" + rest;
}

/// Metadata of one model, and what its tensors say.
class GgufFacts {
 public:
  explicit GgufFacts(const std::vector<std::unique_ptr<Gguf>>& files)
      : files_(files), where_(files[0]->path().string()), fields_(files[0]->metadata(), where_ + ": metadata") {
    arch = fields_.text("general.architecture");
  }

  [[nodiscard]] const Tensor* tensor(const std::string& name) const {
    for (const auto& file : files_) {
      const auto found = file->tensors().find(name);
      if (found != file->tensors().end()) return &found->second;
    }
    return nullptr;
  }
  /// The tensor of that name in the first layer that has it, or null.
  [[nodiscard]] const Tensor* of_a_layer(const std::string& name) const {
    for (const auto& file : files_) {
      for (const auto& [own, t] : file->tensors()) {
        const std::string end = "." + name;
        if (own.size() > end.size() && own.compare(own.size() - end.size(), end.size(), end) == 0) return &t;
      }
    }
    return nullptr;
  }

  [[nodiscard]] bool has_choice_bias() const {
    return of_a_layer("exp_probs_b.bias") != nullptr || of_a_layer("exp_probs_b") != nullptr;
  }

  [[nodiscard]] bool has(const std::string& name) const { return fields_.has(arch + "." + name); }
  /// A value, or null if there is none. A list with the same value for each layer counts as that value.
  [[nodiscard]] Json get(const std::string& name) const {
    if (!has(name)) return nullptr;
    const Json& value = fields_.at(arch + "." + name);
    if (value.is_number_float() && !std::isfinite(value.get<double>()))
      fields_.refuse(arch + "." + name, "a finite number");
    if (!value.is_array()) return value;
    if (value.empty() || std::any_of(value.begin(), value.end(), [&](const Json& v) { return v != value[0]; })) {
      fields_.refuse(arch + "." + name, "one value for all layers");
    }
    return value[0];
  }
  void copy(const std::string& name, const char* to, Json& config) const {
    if (Json value = get(name); !value.is_null()) config[to] = std::move(value);
  }
  [[nodiscard]] std::uint64_t columns(const std::string& of_layer, std::size_t from_last) const {
    const Tensor* t = of_a_layer(of_layer);
    return t == nullptr || t->shape.size() <= from_last ? 0 : t->shape[t->shape.size() - 1 - from_last];
  }
  [[noreturn]] void refuse(const std::string& what) const { throw InputError(where_ + ": " + what); }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const Fields& fields() const { return fields_; }

  std::string arch;

 private:
  const std::vector<std::unique_ptr<Gguf>>& files_;
  std::string where_;
  Fields fields_;
};

/// An architecture of llama.cpp, by its name there.
struct GgufFamily {
  const char* arch;
  const char* architecture;  ///< in the words of config.json
  bool turned;               ///< queries and keys are stored so that columns rotated as a pair are neighbours
  Json more;                 ///< what llama.cpp does where the file says nothing
};

const std::vector<GgufFamily>& families_of_gguf() {
  static const std::vector<GgufFamily> all = {
      {"llama", "MixtralForCausalLM", true, Json::object()},
      {"qwen2moe", "Qwen2MoeForCausalLM", false, {{"norm_topk_prob", false}}},
      {"qwen3moe", "Qwen3MoeForCausalLM", false, {{"norm_topk_prob", true}}},
      {"qwen3vlmoe", "Qwen3MoeForCausalLM", false, {{"norm_topk_prob", true}}},
      {"olmoe", "OlmoeForCausalLM", false, {{"norm_topk_prob", false}}},
      {"deepseek", "DeepseekForCausalLM", true, {{"norm_topk_prob", false}}},
      {"deepseek2", "DeepseekV2ForCausalLM", false, {{"norm_topk_prob", false}}},
      {"glm4moe", "Glm4MoeForCausalLM", false, {{"norm_topk_prob", false}}},
      {"dots1", "Dots1ForCausalLM", false, {{"sliding_window", nullptr}, {"norm_topk_prob", false}}},
      {"ernie4_5-moe", "Ernie4_5_MoeForCausalLM", false, Json::object()},
      {"exaone-moe", "ExaoneMoeForCausalLM", false, {{"norm_topk_prob", false}}},
      {"gpt-oss", "GptOssForCausalLM", false, Json::object()},
      {"granitemoe", "GraniteMoeSharedForCausalLM", true, Json::object()},
      {"granitehybrid", "GraniteMoeHybridForCausalLM", true, Json::object()},
      {"hunyuan-moe", "HunYuanMoEV1ForCausalLM", false, Json::object()},
      {"hy_v3", "HYV3ForCausalLM", false, {{"norm_topk_prob", false}}},
      {"phimoe", "PhiMoEForCausalLM", false, Json::object()},
      {"qwen3next", "Qwen3NextForCausalLM", false, {{"norm_topk_prob", true}}},
      {"qwen35moe", "Qwen3_5MoeForCausalLM", false, {{"norm_topk_prob", true}}},
      {"gemma4", "Gemma4ForCausalLM", false, {{"enable_moe_block", true}, {"hidden_size_per_layer_input", 0}}},
      {"mistral4", "Mistral4ForCausalLM", false, {{"norm_topk_prob", false}}},
      {"lfm2moe", "Lfm2MoeForCausalLM", false, {{"norm_topk_prob", true}, {"num_dense_layers", 0}}},
      {"minimax-m2", "MiniMaxM2ForCausalLM", false, Json::object()},
      {"afmoe",
       "AfmoeForCausalLM",
       false,
       {{"mup_enabled", true},
        {"route_norm", false},
        {"route_scale", 1.0},
        {"num_dense_layers", 0},
        {"global_attn_every_n_layers", 4}}},
      {"llama4", "Llama4ForCausalLM", false, {{"attention_chunk_size", 8192}}}};
  return all;
}

void add_rope(const GgufFacts& f, std::uint64_t head_dim, Json& config) {
  config["rope_theta"] = 10000.0;
  f.copy("rope.freq_base", "rope_theta", config);
  const Json width = f.get("rope.dimension_count");
  if (!f.has("attention.kv_lora_rank")) {  // the family's default may differ
    const bool said = width.is_number_unsigned() && head_dim > 0;
    config["partial_rotary_factor"] = said ? width.get<double>() / static_cast<double>(head_dim) : 1.0;
  }
  Json type = f.get("rope.scaling.type"), factor = f.get("rope.scaling.factor");
  if (factor.is_null()) factor = f.get("rope.scale_linear");  // its older name
  if (type.is_null() && factor.is_number() && factor != 0) type = "linear";
  if (type == "dynamic") f.fields().refuse(f.arch + ".rope.scaling.type", "none, linear, yarn or longrope");
  const bool by_one = type == "linear" && (factor.is_null() || factor == 0);
  if (type.is_null() || type == "none" || by_one) {
    if (f.arch == "gpt-oss") config["rope_scaling"] = {{"rope_type", "default"}};
    return;
  }
  Json scaling = {{"rope_type", type}};
  if (type == "yarn" && (factor.is_null() || factor == 0)) factor = 1;  // config.json's rule is another one
  if (!factor.is_null()) scaling["factor"] = factor;
  if (type == "yarn") {
    f.copy("rope.scaling.original_context_length", "original_max_position_embeddings", scaling);
    f.copy("rope.scaling.yarn_beta_fast", "beta_fast", scaling);
    f.copy("rope.scaling.yarn_beta_slow", "beta_slow", scaling);
    // Only latent attention reads it: elsewhere it stays, and is named as not read.
    if (f.has("attention.kv_lora_rank")) {
      if (const Json log = f.get("rope.scaling.yarn_log_multiplier"); log.is_number() && log != 0) {
        scaling["mscale"] = scaling["mscale_all_dim"] = log.get<double>() * 10;
      }
    }
    if (f.arch == "gpt-oss") scaling["truncate"] = false;
  }
  config["rope_scaling"] = scaling;
}

/// Two tensors divide the frequencies: one for texts up to the original length, the other for longer texts.
void add_long_rope(const GgufFacts& f, Json& config) {
  const Tensor* factors[2] = {};
  const char* names[2] = {"rope_factors_short.weight", "rope_factors_long.weight"};
  for (int i = 0; i < 2; ++i) {
    factors[i] = f.tensor(names[i]) != nullptr ? f.tensor(names[i]) : f.of_a_layer(names[i]);
  }
  if (factors[0] == nullptr && factors[1] == nullptr) return;
  // Scaling beside the factors would be on top of them.
  if (const Json type = f.get("rope.scaling.type"); !type.is_null() && type != "none" && type != "longrope") {
    f.fields().refuse(f.arch + ".rope.scaling.type", "longrope or none beside tensors of factors");
  }
  for (const std::string name : {"rope.scaling.factor", "rope.scale_linear"}) {
    if (const Json factor = f.get(name); !factor.is_null() && factor != 0 && factor != 1) {
      f.fields().refuse(f.arch + "." + name, "none, 0 or 1 beside tensors of factors");
    }
  }
  if (f.tensor(rope_divisors) != nullptr) {
    f.refuse(fmt::format("tensor \"{}\": expected none beside {} and {}", rope_divisors, names[0], names[1]));
  }
  Json scaling = {{"rope_type", "longrope"}};
  for (int i = 0; i < 2; ++i) {
    if (factors[i] == nullptr || factors[i]->dtype != DType::f32 || factors[i]->shape.size() != 1) {
      f.refuse(fmt::format("tensor \"{}\": expected a vector of F32, as the other of the two is there", names[i]));
    }
    scaling[i == 0 ? "short_factor" : "long_factor"] = factors[i]->to_floats();
  }
  f.copy("rope.scaling.original_context_length", "original_max_position_embeddings", scaling);
  const Json scale = f.get("rope.scaling.attn_factor");
  for (const char* name :
       f.arch == "phimoe" ? std::vector{"short_mscale", "long_mscale"} : std::vector{"attention_factor"}) {
    scaling[name] = scale.is_null() ? Json(1.0) : scale;
  }
  config["rope_scaling"] = scaling;
}

/// Counts and widths of experts, under every name that any family reads.
void add_experts(const GgufFacts& f, Json& config) {
  // A key that a GGUF file lacks means none, not the family's default for config.json.
  for (const char* name :
       {"n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "first_k_dense_replace"}) {
    config[name] = 0;
  }
  for (const char* name : {"n_group", "topk_group"}) config[name] = 1;
  config["routed_scaling_factor"] = 1.0;
  const Json count = f.get("expert_count"), used = f.get("expert_used_count");
  Json width = f.get("expert_feed_forward_length");
  for (const auto& [gate, share] : {std::pair{"ffn_gate_exps.weight", 1U}, std::pair{"ffn_gate_up_exps.weight", 2U},
                                    std::pair{"ffn_gate.0.weight", 1U}}) {
    if (width.is_null() && f.of_a_layer(gate) != nullptr) width = f.columns(gate, 1) / share;
  }
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
    config[name] = count;
  for (const char* name : {"num_experts_per_tok", "moe_k", "moe_topk"}) config[name] = used;
  config["moe_intermediate_size"] = width;
  // The width of dense layers in families that have some, and of experts in the others.
  const bool dense = f.of_a_layer("ffn_gate.weight") != nullptr;
  config["intermediate_size"] = dense ? f.get("feed_forward_length") : width;
  const std::uint64_t shared = f.columns("ffn_gate_shexp.weight", 1);
  if (shared > 0) {
    config["shared_expert_intermediate_size"] = config["shared_intermediate_size"] = shared;
    const auto each = width.is_number_unsigned() ? width.get<std::uint64_t>() : 0;
    if (each == 0 || shared % each != 0) {
      const char* with_a_width[] = {"qwen2moe", "granitemoe", "granitehybrid", "qwen3next", "qwen35moe"};
      if (std::find(std::begin(with_a_width), std::end(with_a_width), f.arch) == std::end(with_a_width)) {
        f.refuse(fmt::format("shared experts of width {}, expected a multiple of {}, that of experts", shared, each));
      }
    } else {
      for (const char* name :
           {"n_shared_experts", "moe_num_shared_experts", "num_shared_expert", "num_shared_experts"}) {
        config[name] = shared / each;
      }
    }
  }
  f.copy("leading_dense_block_count", "first_k_dense_replace", config);
  for (const auto& [from, to] :
       {std::pair{"expert_group_count", "n_group"}, std::pair{"expert_group_used_count", "topk_group"},
        std::pair{"expert_weights_scale", "routed_scaling_factor"}}) {
    if (f.get(from) != 0) f.copy(from, to, config);  // 0: there are none
  }
  const Json groups = f.get("expert_group_count"), kept = f.get("expert_group_used_count");
  if (groups.is_number() && groups > 1 && (kept.is_null() || kept == 0)) {
    f.fields().refuse(f.arch + ".expert_group_used_count", "how many of the groups are kept");
  }
  f.copy("expert_weights_norm", "norm_topk_prob", config);
}

/// Turns a list of one boolean for each layer into `layer_types`.
void add_layer_types(const GgufFacts& f, const char* name, const char* where_true, Json& config) {
  const std::string whole = f.arch + "." + name;
  if (!f.fields().has(whole)) return;
  const Json &list = f.fields().at(whole), &layers = config["num_hidden_layers"];
  const bool good = list.is_array() && layers.is_number_unsigned() && list.size() >= layers &&
                    std::all_of(list.begin(), list.end(), [](const Json& one) { return one.is_boolean(); });
  if (!good) f.fields().refuse(whole, "true or false for each layer");
  for (std::size_t l = 0; l < layers; ++l)
    config["layer_types"].push_back(list[l] == true ? where_true : "full_attention");
}

/// Layers with the gated delta rule, which llama.cpp describes with its keys for state space models.
void add_gated_delta(const GgufFacts& f, Json& config) {
  f.copy("ssm.group_count", "linear_num_key_heads", config);
  f.copy("ssm.state_size", "linear_key_head_dim", config);
  f.copy("ssm.time_step_rank", "linear_num_value_heads", config);
  f.copy("ssm.conv_kernel", "linear_conv_kernel_dim", config);
  const Json inner = f.get("ssm.inner_size"), heads = f.get("ssm.time_step_rank");
  if (!inner.is_number_unsigned() || !heads.is_number_unsigned() || heads == 0 ||
      inner.get<std::uint64_t>() % heads.get<std::uint64_t>() != 0) {
    f.refuse(fmt::format("{0}.ssm.inner_size and {0}.ssm.time_step_rank: expected a width and the heads that share it",
                         f.arch));
  }
  config["linear_value_head_dim"] = inner.get<std::uint64_t>() / heads.get<std::uint64_t>();
  f.copy("full_attention_interval", "full_attention_interval", config);
  add_layer_types(f, "attention.recurrent_layers", "linear_attention", config);
}

/// Heads of keys and values. Layers with `memory` instead of attention have none.
void add_heads(const GgufFacts& f, const char* memory, Json& config) {
  const std::string whole = f.arch + ".attention.head_count_kv";
  const Json& list = f.fields().has(whole) ? f.fields().at(whole) : Json();
  const Json& layers = config["num_hidden_layers"];
  std::uint64_t heads = 0;
  bool good = list.is_array() && layers.is_number_unsigned() && list.size() >= layers;
  for (std::size_t l = 0; good && l < layers; ++l) {
    good = list[l].is_number_unsigned() && (list[l] == 0 || heads == 0 || list[l] == heads);
    if (good && list[l] != 0) heads = list[l];
    if (good) config["layer_types"].push_back(list[l] == 0 ? memory : "full_attention");
  }
  if (!good || heads == 0) {
    f.fields().refuse(
        whole, "a list with the heads of each layer, 0 where there is no attention, and one number for all others");
  }
  config["num_key_value_heads"] = heads;
}

void add_convolutions(const GgufFacts& f, Json& config) {
  add_heads(f, "conv", config);
  f.copy("attention.layer_norm_rms_epsilon", "norm_eps", config);
  f.copy("shortconv.l_cache", "conv_L_cache", config);
  f.copy("leading_dense_block_count", "num_dense_layers", config);
}

/// Mamba's layers. The flag for a finetuned rope says here whether there are rotary positions at all.
void add_mamba(const GgufFacts& f, Json& config) {
  add_heads(f, "linear_attention", config);
  f.copy("ssm.group_count", "mamba_n_groups", config);
  f.copy("ssm.time_step_rank", "mamba_n_heads", config);
  f.copy("ssm.state_size", "mamba_d_state", config);
  f.copy("ssm.conv_kernel", "mamba_d_conv", config);
  const Json inner = f.get("ssm.inner_size"), hidden = config["hidden_size"];
  if (!inner.is_number_unsigned() || !hidden.is_number_unsigned() || hidden == 0 ||
      inner.get<std::uint64_t>() % hidden.get<std::uint64_t>() != 0) {
    f.fields().refuse(f.arch + ".ssm.inner_size", "a multiple of the hidden size");
  }
  config["mamba_expand"] = inner.get<std::uint64_t>() / hidden.get<std::uint64_t>();
  config["mamba_conv_bias"] = f.of_a_layer("ssm_conv1d.bias") != nullptr;
  config["mamba_proj_bias"] = f.of_a_layer("ssm_in.bias") != nullptr;
  const bool turns = !f.has("rope.scaling.finetuned") || f.get("rope.scaling.finetuned") == true;
  config["position_embedding_type"] = turns ? "rope" : "nope";
}

/// A value, or a list with one for each layer.
std::vector<Json> of_layers(const GgufFacts& f, const std::string& name, std::uint64_t layers) {
  const std::string whole = f.arch + "." + name;
  const Json& said = f.fields().at(whole);
  if (!said.is_array()) return std::vector<Json>(layers, said);
  if (said.size() < layers) f.fields().refuse(whole, "one for each layer");
  return {said.begin(), said.begin() + static_cast<std::ptrdiff_t>(layers)};
}

/// Heads and positions of layers with a window, and of those without.
void add_gemma4(const GgufFacts& f, Json& config) {
  config["top_k_experts"] = f.get("expert_used_count");
  f.copy("embedding_length_per_layer_input", "hidden_size_per_layer_input", config);
  f.copy("attention.shared_kv_layers", "num_kv_shared_layers", config);
  config["final_logit_softcapping"] = 30.0;
  f.copy("final_logit_softcapping", "final_logit_softcapping", config);
  if (config["final_logit_softcapping"] == 0) config["final_logit_softcapping"] = nullptr;
  for (const char* name : {"attention.sliding_window_pattern", "attention.sliding_window", "attention.key_length",
                           "attention.key_length_swa", "attention.head_count_kv"}) {
    if (!f.has(name)) f.refuse(fmt::format("gemma4 without {} is not supported", name));
  }
  config["sliding_window"] = f.get("attention.sliding_window");
  add_layer_types(f, "attention.sliding_window_pattern", "sliding_attention", config);
  if (config["layer_types"].back() != "full_attention") {
    f.fields().refuse(f.arch + ".attention.sliding_window_pattern", "false for the last layer");
  }
  const auto layers = config["layer_types"].size();
  const Json key = f.get("attention.key_length"), window_key = f.get("attention.key_length_swa");
  for (const auto& [name, width] :
       {std::pair{"attention.value_length", key}, std::pair{"rope.dimension_count", key},
        std::pair{"attention.value_length_swa", window_key}, std::pair{"rope.dimension_count_swa", window_key}}) {
    if (const Json said = f.get(name); !said.is_null() && said != width) {
      f.fields().refuse(f.arch + "." + name, fmt::format("{}, the columns of a head's keys", json_text(width)));
    }
  }
  if (const Json scaling = f.get("rope.scaling.type"); !scaling.is_null() && scaling != "none") {
    f.fields().refuse(f.arch + ".rope.scaling.type", "none, nothing else is supported");
  }
  config["head_dim"] = window_key;
  const std::vector<Json> kv_heads = of_layers(f, "attention.head_count_kv", layers);
  config["per_layer_config"] = Json::object();
  for (std::size_t l = 0; l < layers; ++l) {
    const bool full = config["layer_types"][l] == "full_attention";
    if (!full || !config.contains("num_key_value_heads")) config["num_key_value_heads"] = kv_heads[l];
    Json& own = config["per_layer_config"][std::to_string(l)];
    own["num_key_value_heads"] = kv_heads[l];
    if (!full) continue;
    own["head_dim"] = key;
    config["attention_k_eq_v"] = f.tensor(fmt::format("blk.{}.attn_v.weight", l)) == nullptr;
  }
  // Which part of a head is rotated follows from a tensor that divides the frequencies.
  if (f.tensor(rope_divisors) == nullptr) f.refuse(fmt::format("tensor \"{}\" is missing", rope_divisors));
  for (const auto& [type, name] :
       {std::pair{"full_attention", "rope.freq_base"}, std::pair{"sliding_attention", "rope.freq_base_swa"}}) {
    const Json base = f.has(name) ? f.get(name) : Json(10000.0);
    config["rope_parameters"][type] = {{"rope_type", "default"}, {"rope_theta", base}};
  }
}

/// Latent attention, whose heads have widths of their own.
void add_latent(const GgufFacts& f, Json& config) {
  f.copy("attention.q_lora_rank", "q_lora_rank", config);
  f.copy("attention.kv_lora_rank", "kv_lora_rank", config);
  const bool split = f.has("attention.key_length_mla");
  const Json key = f.get(split ? "attention.key_length_mla" : "attention.key_length");
  const Json rope = f.get("rope.dimension_count");
  if (!key.is_number_unsigned() || !rope.is_number_unsigned() || key <= rope) {
    f.refuse(fmt::format(
        "{0}.attention.key_length and {0}.rope.dimension_count: expected two numbers, the first larger", f.arch));
  }
  config["qk_rope_head_dim"] = rope;
  config["qk_nope_head_dim"] = key.get<std::uint64_t>() - rope.get<std::uint64_t>();
  config["v_head_dim"] = f.get(split ? "attention.value_length_mla" : "attention.value_length");
  config["num_key_value_heads"] = config["num_attention_heads"];
  config.erase("head_dim");
}

/// What is particular to an architecture.
void add_particulars(const GgufFacts& f, std::uint64_t head_dim, Json& config) {
  if (f.arch == "deepseek2") {
    const Json gating = f.get("expert_gating_func");
    const bool sigmoid = gating.is_null() || gating == 0 ? f.has_choice_bias() : gating == 2;
    if (sigmoid) config["architectures"] = {"DeepseekV3ForCausalLM"};
    const Json groups = f.get("expert_group_count");
    if (!sigmoid && !groups.is_null() && groups != 0 && groups != 1) config["topk_method"] = "group_limited_greedy";
    add_latent(f, config);
  } else if (f.arch == "mistral4") {
    add_latent(f, config);
    Json& rope = config["rope_scaling"];
    if (!rope.is_object()) rope = {{"rope_type", "default"}};
    rope["llama_4_scaling_beta"] = 0;  // converters leave it out
    f.copy("attention.temperature_scale", "llama_4_scaling_beta", rope);
    f.copy("rope.scaling.original_context_length", "original_max_position_embeddings", rope);
    const Json length = f.get("attention.temperature_length"), original = f.get("rope.scaling.original_context_length");
    if (!length.is_null() && !original.is_null() && length != original) {
      f.fields().refuse(f.arch + ".attention.temperature_length",
                        fmt::format("{}, as the original context is", json_text(original)));
    }
    if (!length.is_null()) rope["original_max_position_embeddings"] = length;
  } else if (f.arch == "glm4moe") {
    config["use_qk_norm"] = f.of_a_layer("attn_q_norm.weight") != nullptr;
  } else if (f.arch == "qwen2moe") {
    config["qkv_bias"] = config["attention_bias"];
    config.erase("attention_bias");
  } else if (f.arch == "ernie4_5-moe") {
    f.copy("interleave_moe_layer_step", "moe_layer_interval", config);
    f.copy("leading_dense_block_count", "moe_layer_start_index", config);
  } else if (f.arch == "exaone-moe") {
    config["sliding_window"] = nullptr;  // converters leave the key out if there is no window
    if (const Json window = f.get("attention.sliding_window"); !window.is_null() && window != 0) {
      config["sliding_window"] = window;
    }
    add_layer_types(f, "attention.sliding_window_pattern", "sliding_attention", config);
  } else if (f.arch == "hy_v3") {
    config["router_scaling_factor"] = 1.0;
    if (f.get("expert_weights_scale") != 0) f.copy("expert_weights_scale", "router_scaling_factor", config);
    const Json& said = config["num_hidden_layers"];
    const std::uint64_t layers = said.is_number_unsigned() ? said.get<std::uint64_t>() : 0;
    for (std::uint64_t l = 0; l < std::min<std::uint64_t>(layers, 4096); ++l) {  // config_from refuses more
      const bool dense = f.tensor(fmt::format("blk.{}.ffn_gate.weight", l)) != nullptr;
      config["mlp_layer_types"].push_back(dense ? "dense" : "sparse");
    }
  } else if (f.arch == "gpt-oss") {
    if (!f.has("attention.sliding_window")) f.refuse(f.arch + ".attention.sliding_window is missing");
    f.copy("attention.sliding_window", "sliding_window", config);
  } else if (f.arch == "granitemoe" || f.arch == "granitehybrid") {
    if (f.arch == "granitehybrid") add_mamba(f, config);
    if (head_dim > 0) config["attention_multiplier"] = 1 / std::sqrt(static_cast<double>(head_dim));
    f.copy("attention.scale", "attention_multiplier", config);
    f.copy("embedding_scale", "embedding_multiplier", config);
    f.copy("residual_scale", "residual_multiplier", config);
    f.copy("logit_scale", "logits_scaling", config);
  } else if (f.arch == "olmoe") {
    f.copy("attention.clamp_kqv", "clip_qkv", config);
  } else if (f.arch == "llama4") {
    if (f.get("attention.sliding_window") == 0) f.refuse("llama4 without chunks of attention is not supported");
    config["use_qk_norm"] =
        f.get("expert_count") != 128;  // Maverick has none, and norms without weights leave no trace
    f.copy("interleave_moe_layer_step", "interleave_moe_layer_step", config);
    config["intermediate_size_mlp"] = f.get("feed_forward_length");
    config["intermediate_size"] = config["moe_intermediate_size"];
  } else if (f.arch == "minimax-m2") {
    config.erase("partial_rotary_factor");
    f.copy("rope.dimension_count", "rotary_dim", config);
  } else if (f.arch == "afmoe") {
    if (const Json window = f.get("attention.sliding_window"); !window.is_number_unsigned() || window == 0)
      f.refuse("afmoe without attention.sliding_window is not supported");
    f.copy("attention.sliding_window", "sliding_window", config);
    f.copy("leading_dense_block_count", "num_dense_layers", config);
    f.copy("expert_weights_norm", "route_norm", config);
    if (f.get("expert_weights_scale") != 0) f.copy("expert_weights_scale", "route_scale", config);
  } else if (f.arch == "phimoe") {
    config["lm_head_bias"] = f.tensor("output.bias") != nullptr;
    if (const Json window = f.get("attention.sliding_window"); !window.is_null() && window != 0) {
      config["sliding_window"] = window;
    }
  } else if (f.arch == "gemma4") {
    add_gemma4(f, config);
  } else if (f.arch == "lfm2moe") {
    add_convolutions(f, config);
  } else if (f.arch == "qwen3next" || f.arch == "qwen35moe") {
    add_gated_delta(f, config);
  }
}

Json config_of(const GgufFacts& f, const GgufFamily& family) {
  Json config = family.more;
  config["architectures"] = {family.architecture};
  config["hidden_act"] = "silu";
  const Json layers = f.get("block_count"), more = f.get("nextn_predict_layers");
  if (!layers.is_number_unsigned() || layers == 0) f.fields().refuse(f.arch + ".block_count", "a number of layers");
  if (!more.is_null() && (!more.is_number_unsigned() || more >= layers)) {
    f.fields().refuse(f.arch + ".nextn_predict_layers", "fewer than all layers");
  }
  config["num_hidden_layers"] = layers.get<std::uint64_t>() - (more.is_null() ? 0 : more.get<std::uint64_t>());
  const char* const epsilon = "attention.layer_norm_rms_epsilon";
  for (const char* name : {"embedding_length", "attention.head_count", "context_length", epsilon}) {
    if (name == epsilon && f.arch == "olmoe") continue;
    if (!f.has(name)) f.refuse(fmt::format("{}.{} is missing", f.arch, name));
  }
  f.copy("embedding_length", "hidden_size", config);
  f.copy("attention.head_count", "num_attention_heads", config);
  // Other architectures have one number for all layers.
  const bool by_layer = f.arch == "lfm2moe" || f.arch == "gemma4" || f.arch == "granitehybrid";
  if (!by_layer) f.copy("attention.head_count_kv", "num_key_value_heads", config);
  f.copy("attention.key_length", "head_dim", config);
  f.copy("context_length", "max_position_embeddings", config);
  f.copy(epsilon, "rms_norm_eps", config);
  const Tensor* embedding = f.tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    f.refuse("tensor \"token_embd.weight\" is missing, or no matrix");
  config["vocab_size"] = embedding->shape[0];
  config["tie_word_embeddings"] = f.tensor("output.weight") == nullptr;
  for (const auto& [from, to] : {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                 std::pair{"tokenizer.ggml.eos_token_id", "eos_token_id"}}) {
    config[to] = f.fields().has(from) ? f.fields().at(from) : Json(nullptr);
  }
  std::uint64_t head_dim = 0;
  if (config.contains("head_dim") && config["head_dim"].is_number_unsigned()) {
    head_dim = config["head_dim"].get<std::uint64_t>();
  } else if (config["num_attention_heads"].is_number_unsigned() && config["num_attention_heads"] != 0 &&
             config["hidden_size"].is_number_unsigned()) {
    head_dim = config["hidden_size"].get<std::uint64_t>() / config["num_attention_heads"].get<std::uint64_t>();
  }
  config["attention_bias"] = f.of_a_layer("attn_q.bias") != nullptr;
  add_experts(f, config);
  if (f.arch != "gemma4") {
    add_rope(f, head_dim, config);
    add_long_rope(f, config);
  }
  add_particulars(f, head_dim, config);
  return config;
}

/// Files name the gate's rule for architectures that have had several rules.
void check_gating(const GgufFacts& f, const ModelConfig& c) {
  const Json said = f.get("expert_gating_func");
  const int rule = f.arch == "gpt-oss" ? 3 : c.gate.gating == Gating::sigmoid ? 2 : 1;
  if (said.is_null() || said == 0 || said == rule) return;
  f.fields().refuse(f.arch + ".expert_gating_func", fmt::format("{}, this architecture's", rule));
}

/// llama.cpp reads groups of experts for any architecture, so that a file may ask for some that are not computed.
void check_groups(const GgufFacts& f, const ModelConfig& c) {
  const Json said = f.get("expert_group_count");
  if (said.is_null() || said == 0 || said == c.gate.groups) return;
  f.fields().refuse(f.arch + ".expert_group_count", fmt::format("{}, this architecture's", c.gate.groups));
}

/// A key that an architecture does not read must agree with what is computed.
void check_unused(const GgufFacts& f, const ModelConfig& c) {
  const auto check = [&](const char* name, const Json& computed) {
    const Json said = f.get(name);
    if (!said.is_null() && said != computed) {
      f.fields().refuse(f.arch + "." + name, json_text(computed) + ", as it is computed");
    }
  };
  const auto is_zero = [&](const char* name) { return f.get(name) == 0; };
  if (!is_zero("expert_weights_scale")) check("expert_weights_scale", c.routed_scale);
  check("expert_weights_norm", c.renormalise);
  const bool interleaved = f.has("interleave_moe_layer_step");
  if (!interleaved) check("leading_dense_block_count", c.moe_layers.empty() ? c.layers : c.moe_layers[0]);
  if (c.gate.groups > 1 || !is_zero("expert_group_used_count")) check("expert_group_used_count", c.gate.kept_groups);
  check("vocab_size", c.vocabulary);
  if (c.latent.rank == 0 && f.arch != "gemma4") check("attention.value_length", c.value_dim);
  if (c.shared_width == 0) check("expert_shared_count", 0);
}

/// Llama 3's rope scaling is not in the metadata, but in a tensor that divides the frequencies.
void divide_frequencies(const GgufFacts& f, Rope& rope) {
  const Tensor* divisors = f.tensor(rope_divisors);
  if (divisors == nullptr) return;
  if (divisors->dtype != DType::f32 || divisors->shape != std::vector<std::uint64_t>{rope.frequency.size()}) {
    f.refuse(fmt::format("tensor \"{}\" is {} [{}], expected F32 [{}]", rope_divisors, divisors->dtype_name,
                         fmt::join(divisors->shape, ", "), rope.frequency.size()));
  }
  const std::vector<float> values = divisors->to_floats();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] > 0) || !std::isfinite(values[i])) {
      f.refuse(fmt::format("tensor \"{}\" has {} at [{}], expected a number above 0", rope_divisors, values[i], i));
    }
    rope.frequency[i] /= static_cast<double>(values[i]);
  }
}

/// Keys of the model that were not read. Refuses those that may change the result, and returns the others.
std::vector<std::string> left_over(const GgufFacts& f) {
  constexpr std::string_view told_by_tensors[] = {"feed_forward_length", "expert_feed_forward_length",
                                                  "expert_shared_count", "expert_shared_feed_forward_length",
                                                  "attention.value_length"};
  // Some of Mixtral's files have a window that llama.cpp ignores; some keys concern images alone.
  constexpr std::string_view unused[] = {"rope.scaling.finetuned", "rope.scaling.original_context_length",
                                         "rope.dimension_sections", "attention.sliding_window", "n_deepstack_layers"};
  const auto one_of = [](const auto& all, std::string_view name) {
    return std::find(std::begin(all), std::end(all), name) != std::end(all);
  };
  std::vector<std::string> names;
  for (const std::string& whole : f.fields().unread()) {
    if (whole.rfind(f.arch + ".", 0) != 0) continue;
    const std::string name = whole.substr(f.arch.size() + 1);
    const Json& value = f.fields().at(whole);
    if (one_of(told_by_tensors, name) || one_of(unused, name)) continue;
    if (name == "attention.causal" && value == true) continue;
    if (name == "rope.freq_base_swa" && value == f.get("rope.freq_base")) continue;
    const bool extends = name == "rope.scaling.yarn_ext_factor" && value != 1;  // 0 turns it off, which is not computed
    if (!extends && value.is_number() && (value == 0 || (value == 1 && name.find("factor") != std::string::npos)))
      continue;
    const bool computed = name.rfind("rope.", 0) == 0 || name.rfind("attention.", 0) == 0 ||
                          name.rfind("expert", 0) == 0 || name.find("scale") != std::string::npos ||
                          name.find("softcapping") != std::string::npos || name.rfind("swiglu", 0) == 0;
    if (computed) f.fields().refuse(whole, "none, it is not supported");
    names.push_back(whole);
  }
  return names;
}

/// The files as they are.
std::vector<std::unique_ptr<Gguf>> open_all(const std::filesystem::path& path) {
  std::vector<std::unique_ptr<Gguf>> files;
  files.push_back(std::make_unique<Gguf>(path));
  const Json& metadata = files[0]->metadata();
  if (!metadata.contains("split.count")) return files;
  const Fields f(metadata, path.string() + ": metadata");
  const std::uint32_t count = f.whole("split.count", 0, 9999);
  if (count < 2) return files;
  const std::string name = path.filename().string(), end = fmt::format("-of-{:05}.gguf", count);
  constexpr std::size_t digits = 5;
  if (name.size() < end.size() + digits + 1 || name.compare(name.size() - end.size(), end.size(), end) != 0) {
    throw InputError(
        fmt::format("{}: one of {} files, expected a name that ends with 00001{}", path.string(), count, end));
  }
  const std::string begin = name.substr(0, name.size() - end.size() - digits);
  std::vector<std::unique_ptr<Gguf>> all;
  for (std::uint32_t i = 1; i <= count; ++i) {
    const auto shard = path.parent_path() / fmt::format("{}{:05}{}", begin, i, end);
    all.push_back(shard == path ? std::move(files[0]) : std::make_unique<Gguf>(shard));
  }
  return all;
}

/// Converters may write queries, keys and values of a layer as one matrix (and one bias), in this order.
void part_fused(std::vector<std::unique_ptr<Gguf>>& files) {
  const GgufFacts f(files);
  const std::string fused = ".attn_qkv.";
  const auto number = [](const Json& value) { return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0; };
  for (auto& file : files) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : file->tensors()) {
      const std::size_t at = name.find(fused);
      // Gated-delta layers have another matrix of that name.
      if (at != std::string::npos && f.tensor(name.substr(0, at) + ".ssm_conv1d.weight") == nullptr)
        names.push_back(name);
    }
    if (names.empty()) continue;
    const std::uint64_t heads = number(f.get("attention.head_count")), hidden = number(f.get("embedding_length"));
    const std::uint64_t kv_heads = f.has("attention.head_count_kv") ? number(f.get("attention.head_count_kv")) : heads;
    const std::uint64_t key = f.has("attention.key_length") ? number(f.get("attention.key_length"))
                              : heads > 0                   ? hidden / heads
                                                            : 0;
    constexpr std::uint64_t most = 1U << 20U;
    for (const std::string& name : names) {
      const std::size_t at = name.find(fused), behind = at + fused.size();
      const std::string begin = name.substr(0, at), end = name.substr(behind);
      const bool good = std::max({heads, kv_heads, key}) <= most &&
                        file->part_rows(name, {{begin + ".attn_q." + end, heads * key},
                                               {begin + ".attn_k." + end, kv_heads * key},
                                               {begin + ".attn_v." + end, kv_heads * key}});
      if (!good) {
        f.refuse(
            fmt::format("tensor \"{}\": expected the rows of {} heads of queries and {} of keys and of values, {} "
                        "each",
                        name, heads, kv_heads, key));
      }
    }
  }
}

}  // namespace

std::vector<std::unique_ptr<Gguf>> open_gguf(const std::filesystem::path& path) {
  std::vector<std::unique_ptr<Gguf>> files = open_all(path);
  if (files[0]->metadata().contains("general.architecture")) part_fused(files);
  return files;
}

ModelConfig read_gguf_config(const std::filesystem::path& path) {
  const std::vector<std::unique_ptr<Gguf>> files = open_gguf(path);
  const GgufFacts f(files);
  const auto& all = families_of_gguf();
  const auto family = std::find_if(all.begin(), all.end(), [&](const GgufFamily& one) { return one.arch == f.arch; });
  if (family == all.end()) {
    std::string known;
    for (const GgufFamily& one : all) known += fmt::format("{}{}", known.empty() ? "" : ", ", one.arch);
    f.refuse(
        fmt::format("general.architecture is \"{}\", expected one of {}; of others a folder in safetensors may be "
                    "supported",
                    f.arch, known));
  }
  if (!f.has("expert_count") || f.get("expert_count") == 0)
    f.refuse("it has no experts, expected a Mixture-of-Experts");
  // Written as text and parsed again, so that numbers have the types that those of a config.json have.
  ModelConfig c = config_from(parse_json(json_text(config_of(f, *family)), f.where()), f.where());
  check_gating(f, c);
  check_groups(f, c);
  divide_frequencies(f, c.rope);
  if (const Json scale = f.get("expert_weights_scale"); f.arch == "deepseek" && !scale.is_null() && scale != 0) {
    c.routed_scale = f.fields().number(f.arch + ".expert_weights_scale", 0);  // a key that only GGUF files have
  }
  check_unused(f, c);
  c.unknown = left_over(f);
  c.rope.neighbours = c.rope.neighbours || family->turned;
  if (c.norm == Norm::rms_plus_one) c.norm = Norm::rms;  // the 1 is in their files' weights
  c.linear.tiled = f.arch == "qwen35moe";
  c.linear.flat = true;
  const TensorNames read = std::exchange(c.names, {});
  c.names.mamba = "linear_attn.";
  c.names.mamba_in = "linear_attn.in_proj_qkvz.";  // to which `layer_names` maps "ssm_in"
  if (c.norm_place == NormPlace::both) {
    c.names.mlp_norm = "pre_mlp_layernorm";
    c.names.attention_norm_behind = "post_attention_layernorm";
    c.names.mlp_norm_behind = "post_mlp_layernorm";
  }
  // `layer_names` maps "attn_gate" to the name that gated-delta layers use.
  if (!read.output_gate.empty()) c.names.output_gate = "linear_attn.in_proj_z.weight";
  c.names.gate_bias = read.gate_bias.empty() ? "" : "mlp.gate.bias";
  const bool biased = !read.choice_bias.empty() && f.has_choice_bias();  // optional in files
  c.names.choice_bias = biased ? "mlp.gate.e_score_correction_bias" : "";
  c.names.shared_scale = read.shared_scale.empty() ? "" : "mlp.shared_expert_gate.weight";
  if (!read.experts_norm.empty()) {
    c.names.shared = "mlp.";
    c.names.shared_norm_behind = "post_ffw_norm_1";
    c.names.experts_norm = "pre_ffw_norm_2";
    c.names.experts_norm_behind = "post_ffw_norm_2";
  }
  const auto has = [&](const char* name) { return f.of_a_layer(name) != nullptr; };  // scales are optional in files
  if (!read.layer_scale.empty() && has("layer_output_scale.weight")) c.names.layer_scale = "layer_output_scale.weight";
  if (!read.gate_scale.empty()) c.names.gate_scale = "mlp.gate.scale";
  if (!read.expert_scale.empty() && has("ffn_down_exps.scale")) c.names.expert_scale = "mlp.experts.down_proj.scale";
  c.names.fused = {"mlp.experts.gate_up_proj.weight", "mlp.experts.down_proj.weight"};
  c.storage = ExpertStorage::fused_parts;
  return c;
}

bool has_norms_behind(const std::vector<std::unique_ptr<Gguf>>& files) {
  return GgufFacts(files).of_a_layer("post_ffw_norm.weight") != nullptr;
}

std::string folder_name(const std::string& name, bool norms_behind) {
  const std::string block = "blk.";
  if (name.rfind(block, 0) != 0) {
    const std::string outer = renamed(name, outer_names);
    return outer.empty() ? name : outer;
  }
  const std::size_t dot = name.find('.', block.size());
  if (dot == std::string::npos) return name;
  const std::string own = name.substr(dot + 1);
  const std::string inner =
      norms_behind && own == "ffn_norm.weight" ? "pre_mlp_layernorm.weight" : renamed(own, layer_names);
  return "model.layers." + name.substr(block.size(), dot - block.size()) + "." +
         (is_of_one_expert(own) ? of_one_expert(own)
          : inner.empty()       ? own
                                : inner);
}

}  // namespace ferry::engine
