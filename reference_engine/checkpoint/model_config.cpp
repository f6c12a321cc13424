#include "checkpoint/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoint/families.hpp"
#include "checkpoint/generation_config.hpp"
#include "checkpoint/gguf_model.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"

namespace ferry::engine {
namespace {

/// Fields that do not change what a model computes: who wrote the config, how the model was trained, how other programs
/// use it.
const std::set<std::string>& harmless() {
  static const std::set<std::string> names = {"_attn_implementation",
                                              "_attn_implementation_autoset",
                                              "_name_or_path",
                                              "attention_dropout",
                                              "attn_implementation",
                                              "attn_pdrop",
                                              "auto_map",
                                              "architectures",
                                              "aux_loss_alpha",
                                              "chunk_size_feed_forward",
                                              "classifier_dropout",
                                              "cls_token_id",
                                              "cross_attention_hidden_size",
                                              "decoder_start_token_id",
                                              "dtype",
                                              "embd_pdrop",
                                              "eod_token_id",
                                              "ep_size",
                                              "finetuning_task",
                                              "forced_bos_token_id",
                                              "forced_eos_token_id",
                                              "hidden_dropout",
                                              "id2label",
                                              "im_end_id",
                                              "im_newline_id",
                                              "im_start_id",
                                              "init_method",
                                              "initial_context_length",
                                              "initializer_range",
                                              "input_jitter_noise",
                                              "is_decoder",
                                              "is_encoder_decoder",
                                              "label2id",
                                              "mask_init_id",
                                              "mask_token_id",
                                              "max_tokenizer_truncation",
                                              "max_window_layers",
                                              "model_max_length",
                                              "model_type",
                                              "moe_drop_tokens",
                                              "moe_random_routing_dropped_token",
                                              "mtp_num_layers",
                                              "name_or_path",
                                              "num_mtp_modules",
                                              "num_nextn_predict_layers",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_past",
                                              "output_router_logits",
                                              "pad_id",
                                              "pad_token_id",
                                              "parallel_config",
                                              "pretraining_tp",
                                              "problem_type",
                                              "resid_pdrop",
                                              "return_dict",
                                              "router_aux_loss_coef",
                                              "router_jitter_noise",
                                              "sep_token_id",
                                              "seq_aux",
                                              "task_specific_params",
                                              "text_end_id",
                                              "text_start_id",
                                              "tokenizer_class",
                                              "torch_dtype",
                                              "torchscript",
                                              "transformers_version",
                                              "unsloth_fixed",
                                              "unsloth_version",
                                              "use_cache",
                                              "use_mtp"};
  return names;
}

/// Quantized weights that can be read as stored. Other quantizers change which tensors a checkpoint has.
void read_quantization(const Fields& config, const std::string& where, ModelConfig& c) {
  const Fields q(config.at("quantization_config"), where + ": quantization_config");
  const std::string method = q.text("quant_method");
  if (method == "fp8") {
    if (q.has("fmt") && q.at("fmt") != "e4m3" && q.at("fmt") != "float8_e4m3fn" && q.at("fmt") != "e4m3fn") {
      q.refuse("fmt", "\"e4m3\" or \"float8_e4m3fn\"");
    }
    c.one_scale = q.is_null("weight_block_size");
    if (!c.one_scale && q.at("weight_block_size") != Json::array({128, 128})) {
      q.refuse("weight_block_size", "[128, 128], or null for one scale a matrix");
    }
    for (const char* name : {"act_per_tensor", "weight_per_tensor"}) {
      if (q.flag(name, false) && !c.one_scale) q.refuse(name, "false, or a weight_block_size of null");
    }
    if (q.has("expert_dtype") && q.at("expert_dtype") != "fp8") q.refuse("expert_dtype", "\"fp8\"");
  } else if (method != "mxfp4") {
    q.refuse("quant_method", "\"fp8\" or \"mxfp4\"");
  }
  for (const char* known : {"activation_scheme", "modules_to_not_convert", "ignored_layers", "modules_to_convert",
                            "scale_fmt", "dequantize"}) {
    static_cast<void>(q.has(known));  // about activations, which stay floats, or weights that are not quantized
  }
  for (const std::string& field : q.unread()) q.refuse(field, "none, it is not supported");
}

/// Whether a field is of images, sounds or special tokens, none of which a text's arithmetic depends on.
bool is_of_media(const std::string& name) {
  static const char* const parts[] = {"vision",    "image",     "video",        "audio",
                                      "projector", "_token_id", "_token_index", "spatial"};
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

/// Whether the embeddings of a model that also sees are the head, too. `text`: what its text's part says.
bool is_tied(const Fields& whole, bool text, FamilyDefaults::Tied by) {
  using Tied = FamilyDefaults::Tied;
  if (by == Tied::root_or_text) return whole.flag("tie_word_embeddings", text);
  const bool root = whole.flag("tie_word_embeddings", false);
  return by == Tied::root ? root : text || (by == Tied::either && root);
}

/// One token or a list of them; null: nothing ends a text. Tokens that the vocabulary does not have are ignored: small models
/// may have the default of their family, which has more. `absent`: that default, where the file lacks the field.
std::vector<std::uint32_t> read_end_tokens(const Fields& f, std::uint32_t vocabulary,
                                           std::optional<std::uint32_t> absent) {
  std::vector<std::uint32_t> all;
  if (f.is_null("eos_token_id")) return all;
  if (!f.has("eos_token_id")) {
    if (absent && *absent < vocabulary) all.push_back(*absent);
    return all;
  }
  const Json& field = f.at("eos_token_id");
  for (const Json& token : field.is_array() ? field : Json::array({field})) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() >= no_token) {
      f.refuse("eos_token_id", "whole numbers, one by itself or some in a list, or null");
    }
    if (const auto one = token.get<std::uint32_t>(); one < vocabulary) all.push_back(one);
  }
  return all;
}

}  // namespace

std::string ModelConfig::tensor(std::uint32_t layer_number, const std::string& name) const {
  return fmt::format("{}layers.{}.{}", names.model, layer_number, name);
}

std::vector<std::uint32_t> ModelConfig::of_moe_layers(std::uint32_t LayerConfig::*what) const {
  std::vector<std::uint32_t> all;
  for (const std::uint32_t l : moe_layers) all.push_back(layer[l].*what);
  return all;
}

bool ModelConfig::experts_differ() const {
  return std::any_of(moe_layers.begin(), moe_layers.end(),
                     [&](std::uint32_t l) { return layer[l].experts != experts || layer[l].top_k != top_k; });
}

std::uint64_t ModelConfig::routed_experts() const {
  std::uint64_t sum = 0;
  for (const std::uint32_t l : moe_layers) sum += layer[l].experts;
  return sum;
}

bool ModelConfig::ends(std::uint32_t token) const {
  return std::find(end_tokens.begin(), end_tokens.end(), token) != end_tokens.end();
}

namespace {

ModelConfig read_own_config(const std::filesystem::path& model) {
  if (is_gguf(model)) return read_gguf_config(model);
  const auto path = model / "config.json";
  std::error_code none;
  if (!std::filesystem::exists(path, none) && !none) {
    throw InputError(path.string() +
                     ": not found; --model names a folder with config.json and model.safetensors, or a GGUF file");
  }
  return config_from(read_json(path), path.string());
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& model) {
  ModelConfig c = read_own_config(model);
  const GenerationConfig generation = read_generation_config(model);
  for (const std::uint32_t token : generation.end_tokens) {
    if (token < c.vocabulary && !c.ends(token)) c.end_tokens.push_back(token);
  }
  c.generation_not_done = generation.not_done;
  return c;
}

ModelConfig config_from(const Json& root, const std::string& where) {
  const Fields whole(root, where);
  ModelConfig c;

  const Json& names = whole.at("architectures");
  if (!names.is_array() || names.size() != 1 || !names[0].is_string())
    whole.refuse("architectures", "one name in a list");
  c.architecture_name = names[0].get<std::string>();
  const FamilyDefaults absent = family_defaults(whole, c.architecture_name);
  // Models that also take images: only what the config says about text is computed.
  const bool sees = c.architecture_name.ends_with("ForConditionalGeneration");
  const bool nested = whole.has("text_config") && (sees || !whole.has("hidden_size"));
  if (whole.has("text_config") && !nested) whole.refuse("text_config", "none, this model reads what stands beside it");
  const Fields f(nested ? whole.at("text_config") : root, nested ? where + ": text_config" : where);

  c.layers = f.whole("num_hidden_layers", 1, 4096);
  c.layer.resize(c.layers);
  c.hidden = f.whole("hidden_size", 1, largest_dimension);
  c.heads = f.whole("num_attention_heads", 1, 4096);
  c.kv_heads = f.has("num_key_value_heads") ? f.whole("num_key_value_heads", 1, 4096) : c.heads;
  if (c.heads % c.kv_heads != 0) f.refuse("num_key_value_heads", fmt::format("a divisor of {} heads", c.heads));
  const char* head_dim = f.has("head_dim") ? "head_dim" : "attention_head_dim";
  if (absent.latent) {
    static_cast<void>(f.has("head_dim"));
  } else if (f.has(head_dim)) {
    c.head_dim = f.whole(head_dim, 2, 4096);
  } else {
    if (c.hidden % c.heads != 0) f.refuse("hidden_size", fmt::format("a multiple of {} heads", c.heads));
    c.head_dim = c.hidden / c.heads;
  }
  if (c.head_dim % 2 != 0) {
    f.has(head_dim) ? f.refuse(head_dim, "an even number")
                    : f.refuse("hidden_size", fmt::format("an even number for each of {} heads", c.heads));
  }
  c.vocabulary = f.whole("vocab_size", 2, 1U << 24U);
  c.context = f.whole("max_position_embeddings", 1, 1U << 28U);
  const auto says = [&f](const char* name) { return f.has(name) || f.is_null(name); };
  c.norm_epsilon = says("rms_norm_eps") ? f.number("rms_norm_eps", 0) : absent.norm_epsilon;
  if (f.has("bos_token_id")) {
    const std::uint32_t token = f.whole("bos_token_id", 0, no_token - 1);
    // Small models may have the default of their family, which has more tokens.
    if (token < c.vocabulary) {
      c.begin_token = token;
    } else {
      c.unknown.emplace_back("bos_token_id");
    }
  }
  c.end_tokens = read_end_tokens(f, c.vocabulary, absent.end_token);
  if (nested && whole.has("eos_token_id")) {
    for (const std::uint32_t token : read_end_tokens(whole, c.vocabulary, std::nullopt)) {
      if (!c.ends(token)) c.end_tokens.push_back(token);
    }
  }
  if (says("hidden_act") && f.text("hidden_act") != "silu" && f.text("hidden_act") != "swish")
    f.refuse("hidden_act", "\"silu\"");
  // Unless this is true, transformers lets tokens attend to later ones; null is not true.
  if (says("is_causal") && (f.is_null("is_causal") || !f.flag("is_causal", true))) f.refuse("is_causal", "true");
  for (const Fields* fields : {&whole, &f}) {
    if (fields->has("quantization_config")) read_quantization(*fields, where, c);
  }
  read_family(f, c);
  if (nested) c.tied_embeddings = is_tied(whole, c.tied_embeddings, absent.tied);

  if (c.value_dim == 0) c.value_dim = c.head_dim;
  if (c.attention_scale == 0) c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    LayerConfig& layer = c.layer[l];
    if (layer.kv_heads == 0) layer.kv_heads = c.kv_heads;
    if (layer.head_dim == 0) layer.head_dim = c.head_dim;
    if (!layer.moe) continue;
    c.moe_layers.push_back(l);
    if (layer.experts == 0) layer.experts = c.experts;
    if (layer.top_k == 0) layer.top_k = c.top_k;
    if (layer.expert_width == 0) layer.expert_width = c.expert_width;
    if (layer.shared_width == 0) layer.shared_width = c.shared_width;
  }
  if (c.moe_layers.empty()) f.refuse("num_hidden_layers", "one layer with experts at least");
  const auto nobody_read = [&](const std::string& name) {
    const std::vector<std::string> unread = f.unread();
    return std::find(unread.begin(), unread.end(), name) != unread.end();
  };
  for (const char* name : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (nobody_read(name) && f.flag(name, false)) f.refuse(name, "false, this family has none");
  }
  const char* const by_layer = "per_layer_config";  // in files of transformers 5.23, any fields by layer
  if (nobody_read(by_layer) && f.has(by_layer) && !f.at(by_layer).empty()) {
    f.refuse(by_layer, "none, this family's layers are not described one by one");
  }
  for (const std::string& name : f.unread()) {
    if (harmless().count(name) == 0) c.unknown.push_back(name);
  }
  if (!nested) return c;
  // Outside of text_config, only end tokens, quantization and tied embeddings are read. Fields that differ are reported.
  const Json& text = root["text_config"];
  for (const std::string& name : whole.unread()) {
    const bool same = text.contains(name) && text[name] == root[name];
    if (!same && !is_of_media(name) && harmless().count(name) == 0) c.unknown.push_back(name + " (beside text_config)");
  }
  return c;
}

}  // namespace ferry::engine
