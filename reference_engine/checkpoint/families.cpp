// A short description of each family of models, from which one engine computes all of them. It follows the models' own code
// and that of transformers, and has a default only where they have one.
#include "checkpoint/families.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t most_experts = 65534;

/// Reads fields of a config.json into a ModelConfig, in the words that several families share.
class FamilyReader {
 public:
  FamilyReader(const Fields& fields, ModelConfig& config) : f(fields), c(config) {}

  const Fields& f;
  ModelConfig& c;

  /// The first of these names that the file has. Refuses two with different values.
  std::string one_of(const std::vector<std::string>& names) const {
    std::string found;
    for (const std::string& name : names) {
      if (!f.has(name)) continue;
      if (!found.empty() && f.at(name) != f.at(found))
        f.refuse(name, fmt::format("{} as \"{}\" says", json_text(f.at(found)), found));
      if (found.empty()) found = name;
    }
    return found.empty() ? names[0] : found;
  }
  std::uint32_t whole(const std::vector<std::string>& names, std::uint32_t least, std::uint32_t most) const {
    return f.whole(one_of(names), least, most);
  }
  double number_or(const std::string& name, double absent) const { return f.has(name) ? f.number(name, 0) : absent; }
  std::uint32_t whole_or(const std::string& name, std::uint32_t absent, std::uint32_t most = largest_dimension) const {
    return f.has(name) ? f.whole(name, 0, most) : absent;
  }
  /// Reads one number for all layers, or a list with one for each layer. Returns the largest.
  std::uint32_t by_layer(const std::string& name, std::uint32_t most, std::uint32_t LayerConfig::*what) const {
    if (!f.has(name) || !f.at(name).is_array()) return f.whole(name, 1, most);
    const Json& list = f.at(name);
    const auto good = [&](const Json& one) { return one.is_number_unsigned() && one >= 1U && one <= most; };
    if (list.size() != c.layers || !std::all_of(list.begin(), list.end(), good)) {
      f.refuse(name,
               fmt::format("a whole number from 1 to {}, or a list with one for each of {} layers", most, c.layers));
    }
    std::uint32_t largest = 0;
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      c.layer[l].*what = list[l].get<std::uint32_t>();
      largest = std::max(largest, c.layer[l].*what);
    }
    return largest;
  }
  /// Refuses flags that are set: what they ask for is not supported.
  void must_be_off(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (f.flag(name, false)) f.refuse(name, "false, it is not supported");
    }
  }
  void must_be_absent(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (f.has(name)) f.refuse(name, "null, it is not supported");
    }
  }
  void must_be(const char* name, std::uint32_t value) const {
    if (f.has(name) && f.at(name) != value) f.refuse(name, fmt::format("{}, nothing else is supported", value));
  }

  void experts(const std::vector<std::string>& count, const std::vector<std::string>& top_k, const char* width) {
    c.experts = whole(count, 1, most_experts);
    c.top_k = whole(top_k, 1, most_experts);
    c.expert_width = f.whole(width, 1, largest_dimension);
    if (c.top_k > c.experts) {
      f.refuse(one_of(top_k), fmt::format("at most the number of experts, {}", c.experts));
    }
  }

  /// Layers that `dense` names have an MLP of `intermediate_size` in the place of experts.
  template <class Dense>
  void dense_layers(const Dense& dense) {
    static_cast<void>(f.has("intermediate_size"));  // read even if no layer is dense: files have it anyway
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      c.layer[l].moe = !dense(l);
      if (!c.layer[l].moe && c.dense_width == 0) c.dense_width = f.whole("intermediate_size", 1, largest_dimension);
    }
  }

  /// The first layers are dense. In later families, makers and transformers disagree on what `moe_layer_freq` does.
  void dense_first(std::uint32_t absent) {
    const std::uint32_t first = whole_or("first_k_dense_replace", absent);
    must_be("moe_layer_freq", 1);
    dense_layers([&](std::uint32_t l) { return l < first; });
  }

  /// Dense layers as `mlp_layer_types` says, or else the first `first_k_dense_replace` ones.
  void typed_layers(std::uint32_t absent) {
    if (!f.has("mlp_layer_types")) return dense_first(absent);
    const Json& types = f.at("mlp_layer_types");
    const auto known = [](const Json& type) { return type == "dense" || type == "sparse"; };
    if (!types.is_array() || types.size() != c.layers || !std::all_of(types.begin(), types.end(), known)) {
      f.refuse("mlp_layer_types", fmt::format("a list of {} times \"dense\" or \"sparse\"", c.layers));
    }
    dense_layers([&](std::uint32_t l) { return types[l] == "dense"; });
    static_cast<void>(f.has("first_k_dense_replace"));  // beside the list, transformers writes only its default
  }

  /// Qwen's way to say which layers have experts.
  void sparse_layers() {
    const std::uint32_t step = whole_or("decoder_sparse_step", 1);
    const std::vector<bool> only = numbers_of_layers("mlp_only_layers", [](std::uint32_t) { return false; });
    if (step == 0) f.refuse("decoder_sparse_step", "a whole number from 1");
    dense_layers([&](std::uint32_t l) { return only[l] || (l + 1) % step != 0; });
  }

  /// Which layers a list of layer numbers names; `absent` decides where the file has no list.
  template <class Absent>
  std::vector<bool> numbers_of_layers(const char* name, const Absent& absent) const {
    std::vector<bool> is(c.layers, false);
    for (std::uint32_t l = 0; !f.has(name) && l < c.layers; ++l) is[l] = absent(l);
    if (!f.has(name)) return is;
    const Json& list = f.at(name);
    if (!list.is_array()) f.refuse(name, "a list of layers");
    for (const Json& l : list) {
      if (!l.is_number_unsigned()) f.refuse(name, "a list of layers");
      if (l < c.layers) is[l.get<std::uint32_t>()] = true;
    }
    return is;
  }

  /// Calls call(layer, index into `known`) as `layer_types` says, or as `absent` says where the file has none.
  template <class Absent, class Call>
  void layer_types(const std::vector<std::string>& known, const Absent& absent, const Call& call) const {
    const bool said = f.has("layer_types");
    static const Json none = Json::array();
    const Json& types = said ? f.at("layer_types") : none;
    if (said && (!types.is_array() || types.size() != c.layers)) {
      f.refuse("layer_types", fmt::format("a list of {} types of attention, one for each layer", c.layers));
    }
    for (std::uint32_t l = 0; l < c.layers; ++l) {
      std::uint32_t type = said ? 0 : absent(l);
      for (; said && type < known.size() && types[l] != known[type]; ++type) {
      }
      if (type == known.size()) {
        f.refuse("layer_types", fmt::format("\"{}\" for every layer, where layer {} has {:.40}, which is not supported",
                                            fmt::join(known, "\" or \""), l, json_text(types[l])));
      }
      call(l, type);
    }
  }

  /// Which layers attend to a window.
  template <class Absent>
  void windows(std::uint32_t window, const Absent& absent) {
    layer_types(
        {"full_attention", "sliding_attention"}, [&](std::uint32_t l) { return absent(l) ? 1U : 0U; },
        [&](std::uint32_t l, std::uint32_t type) {
          if (type == 1 && window == 0) {
            f.refuse(f.has("layer_types") ? "layer_types" : "sliding_window",
                     fmt::format("a sliding_window of 1 token at least, since layer {} has sliding attention", l));
          }
          c.layer[l].window = type == 1 ? window : 0;
        });
  }
  /// Tokens of a window; 0 where the file says null, which means that there is none.
  [[nodiscard]] std::uint32_t sliding_window(std::uint32_t absent) const {
    if (f.has("sliding_window")) return f.whole("sliding_window", 1, 1U << 28U);
    return f.is_null("sliding_window") ? 0 : absent;
  }
  /// Qwen's window, which counts only if `use_sliding_window` is set.
  [[nodiscard]] std::uint32_t used_window() const {
    if (f.flag("use_sliding_window", false)) return sliding_window(4096);
    static_cast<void>(f.has("sliding_window"));
    return 0;
  }
  /// The same window for all layers, or none.
  void window_everywhere() { everywhere(sliding_window(0)); }
  void everywhere(std::uint32_t window) {
    windows(window, [&](std::uint32_t) { return window > 0; });
    // These families have no types of layers: if there is a window, all layers have it.
    for (LayerConfig& layer : c.layer) layer.window = window;
  }
  void no_windows() {
    windows(0, [](std::uint32_t) { return false; });
  }

  void rope(RopeNeeds needs = {}) {
    if (needs.head_dim == 0) needs.head_dim = c.head_dim;
    needs.context = c.context;
    c.rope = read_rope(f, needs);
    // A stretched model may keep its old max_position_embeddings, as Qwen3's makers tell users to leave it.
    if (c.rope.stretched_context > c.context) {
      c.context = static_cast<std::uint32_t>(std::min(c.rope.stretched_context, 268435456.0));
    }
  }

  /// Heads of single layers, by the layers' numbers: {"5": {"head_dim": 512, "num_key_value_heads": 2}}.
  void heads_by_layer(const char* name) {
    if (!f.at(name).is_object()) f.refuse(name, "an object, by number of layer");
    for (const auto& [number, heads] : f.at(name).items()) {
      std::uint32_t l = 0;
      while (l < c.layers && std::to_string(l) != number) ++l;
      if (l == c.layers) f.refuse(name, fmt::format("layers 0 to {} and no \"{:.20}\"", c.layers - 1, number));
      const Fields own(heads, fmt::format("{}: {}: {}", f.where(), name, number));
      if (own.has("head_dim")) c.layer[l].head_dim = own.whole("head_dim", 2, 4096);
      if (own.has("num_key_value_heads")) c.layer[l].kv_heads = own.whole("num_key_value_heads", 1, 4096);
      for (const std::string& field : own.unread()) own.refuse(field, "none, it is not supported");
    }
  }

  /// The projections of queries, keys, values and the output have biases, or none of them has.
  void attention_bias(bool absent) { c.qkv_bias = c.output_bias = f.flag("attention_bias", absent); }

  /// `absent`: the rope of a family whose files may have none; these files may also say which part of a head is rotated.
  /// Null: the file has a rope, and all of `qk_rope_head_dim` is rotated.
  void latent_attention(const Json* absent = nullptr) {
    must_be_off({"mlp_bias"});
    c.latent.bias = f.flag("attention_bias", false);
    c.latent.rank = f.whole("kv_lora_rank", 1, largest_dimension);
    c.latent.query_rank = f.has("q_lora_rank") ? f.whole("q_lora_rank", 1, largest_dimension) : 0;
    c.latent.plain_dim = f.whole("qk_nope_head_dim", 1, 4096);
    const std::uint32_t turned = f.whole("qk_rope_head_dim", 2, 4096);
    c.head_dim = c.latent.plain_dim + turned;
    c.value_dim = f.whole("v_head_dim", 1, 4096);
    c.kv_heads = c.heads;
    if (f.has("qk_head_dim")) must_be("qk_head_dim", c.head_dim);
    const bool neighbours = f.flag("rope_interleave", !f.is_null("rope_interleave"));
    if (absent == nullptr) {
      rope({.head_dim = turned, .theta = 10000, .neighbours = neighbours});
    } else {
      rope({.head_dim = c.head_dim,
            .theta = 10000,
            .partial = static_cast<double>(turned) / c.head_dim,
            .may_be_partial = true,
            .neighbours = neighbours,
            .tuning = true,
            .absent = absent});
    }
    if (c.rope.width != turned) f.refuse("qk_rope_head_dim", fmt::format("{}, all of them turned", c.rope.width));
    c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    if (c.rope.mscale_all_dim != 0 && c.rope.factor > 1) {
      const double m = 0.1 * c.rope.mscale_all_dim * std::log(c.rope.factor) + 1;
      c.attention_scale *= m * m;
    }
  }

  /// Groups of experts: a row chooses its experts from only some of the groups.
  void groups(std::uint16_t votes, std::uint32_t absent, std::uint32_t absent_kept) {
    const std::uint32_t all = whole_or("n_group", f.is_null("n_group") ? 1 : absent);
    const std::uint32_t kept = whole_or("topk_group", f.is_null("topk_group") ? (all == 1 ? 1 : 0) : absent_kept);
    if (all == 0 || all > GateRule::most_groups || c.experts % all != 0 || c.experts / all < votes) {
      f.refuse("n_group", fmt::format("a divisor of {} experts, {} at most, with groups of {} at least", c.experts,
                                      GateRule::most_groups, votes));
    }
    if (kept == 0 || kept > all || kept * (c.experts / all) < c.top_k) {
      f.refuse("topk_group", fmt::format("1 to {}, and enough for {} experts", all, c.top_k));
    }
    c.gate.groups = static_cast<std::uint16_t>(all);
    c.gate.kept_groups = static_cast<std::uint16_t>(kept);
    c.gate.group_votes = votes;
  }

  /// Defaults of DeepSeek-V3's gate and of those modelled on it.
  struct SigmoidGate {
    std::uint32_t groups = 1, kept_groups = 1;
    double scale = 1;
    bool norm = true;
  };
  void sigmoid_gate(const char* bias, const SigmoidGate& absent) {
    c.gate.gating = Gating::sigmoid;
    c.names.choice_bias = bias;
    // dots.llm1's files name the method of balancing here.
    if (f.has("scoring_func") && f.at("scoring_func") != "sigmoid" && f.at("scoring_func") != "noaux_tc") {
      f.refuse("scoring_func", "\"sigmoid\"");
    }
    if (f.has("topk_method") && f.at("topk_method") != "noaux_tc") f.refuse("topk_method", "\"noaux_tc\"");
    groups(2, absent.groups, absent.kept_groups);
    c.renormalise = f.flag("norm_topk_prob", absent.norm && !f.is_null("norm_topk_prob"));
    c.added_to_sum = 1e-20;
    c.routed_scale = number_or("routed_scaling_factor", absent.scale);
  }

  void shared_experts(const char* count, std::uint32_t absent) {
    const std::uint32_t shared = whole_or(count, f.is_null(count) ? 0 : absent, 4096);
    c.shared_width = shared * c.expert_width;
    if (shared != 0 && (c.shared_width / shared != c.expert_width || c.shared_width > largest_dimension)) {
      f.refuse(count, "so few that all of them together have 1048576 columns at most");
    }
  }

  /// Mixtral's names of tensors. Several families took them over; transformers' own code does not use them.
  void block_sparse_names(const char* inner_gate = "mlp.gate.weight") {
    c.names.gate = "block_sparse_moe.gate.weight";
    c.names.experts = "block_sparse_moe.experts.";
    c.names.parts = {"w1", "w3", "w2"};
    c.inner_names.emplace().gate = inner_gate;
  }
};

void mixtral(FamilyReader& r) {
  r.block_sparse_names();
  r.experts({"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, "intermediate_size");
  r.c.renormalise = true;
  r.rope();
  r.window_everywhere();
  r.must_be_off({"attention_bias"});
  if (r.f.flag("qkv_bias", false)) r.f.refuse("qkv_bias", "false, a Mixtral has no biases");
}

void phimoe(FamilyReader& r) {
  r.block_sparse_names("mlp.router.weight");
  r.experts({"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, "intermediate_size");
  if (r.c.top_k != 2) r.f.refuse("num_experts_per_tok", "2: its sparse mixer weighs a first and a second expert");
  if (r.c.experts < 2) r.f.refuse("num_local_experts", "2 at least");
  r.c.gate.gating = Gating::sparse_mixer;
  const bool only_equals = r.f.has("router_jitter_noise") && r.f.at("router_jitter_noise") == 0;
  r.c.gate.mixer_epsilon = only_equals ? 0 : static_cast<float>(r.number_or("router_jitter_noise", 0.01));
  r.c.norm = Norm::mean;
  r.attention_bias(false);
  r.c.head_bias = r.f.flag("lm_head_bias", false);
  r.rope({.theta = 1e6, .mscales = true});
  r.window_everywhere();
}

void qwen2_moe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.c.shared_width = r.f.whole("shared_expert_intermediate_size", 1, largest_dimension);
  r.c.names.shared = "mlp.shared_expert.";
  r.c.names.shared_scale = "mlp.shared_expert_gate.weight";
  r.c.renormalise = r.f.flag("norm_topk_prob", false);
  r.c.qkv_bias = r.f.flag("qkv_bias", true);
  r.must_be_off({"attention_bias"});
  r.rope();
  r.sparse_layers();
  const bool used = r.f.flag("use_sliding_window", false);
  const std::uint32_t first = r.whole_or("max_window_layers", 28);
  r.windows(r.used_window(), [&](std::uint32_t l) { return used && l % 2 == 0 && l < first; });
}

void qwen3_moe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.c.renormalise = r.f.flag("norm_topk_prob", false);
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.attention_bias(false);
  r.rope();
  r.sparse_layers();
  static_cast<void>(r.whole_or("max_window_layers", 0));  // older files have it; the family does not read it
  r.everywhere(r.used_window());
}

/// On texts it is a Qwen3-MoE, except that its experts are stored differently.
void qwen3_vl_moe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  if (!r.f.flag("norm_topk_prob", true)) {
    r.f.refuse("norm_topk_prob", "true, this family always divides weights by their sum");
  }
  r.c.renormalise = true;
  r.c.storage = ExpertStorage::fused_columns;
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.attention_bias(false);
  r.rope({.theta = 500000, .sections = true});
  r.sparse_layers();
  r.no_windows();
  r.c.names.model = "model.language_model.";
}

void olmoe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "intermediate_size");
  r.c.renormalise = r.f.flag("norm_topk_prob", false);
  r.c.head_norm = HeadNorm::all_before_rope;
  r.c.clip = r.number_or("clip_qkv", 0);
  r.attention_bias(false);
  r.rope({.theta = 10000});
  r.no_windows();
}

void flex_olmo(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "intermediate_size");
  r.c.renormalise = r.f.flag("norm_topk_prob", false);
  r.c.head_norm = HeadNorm::all_before_rope;
  r.c.norm_place = NormPlace::behind;
  r.c.names.attention_norm = "post_attention_layernorm";
  r.c.names.mlp_norm = "post_feedforward_layernorm";
  r.attention_bias(false);
  r.rope({.theta = 500000});
  r.no_windows();
}

/// Trinity: norms before and behind, gates on the output of attention; only layers with a window have rotary positions.
void afmoe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.c.gate.gating = Gating::sigmoid;
  if (r.f.has("score_func") && r.f.at("score_func") != "sigmoid") r.f.refuse("score_func", "\"sigmoid\"");
  if (!r.f.flag("route_norm", true)) r.f.refuse("route_norm", "true, this family always divides weights by their sum");
  for (const char* groups : {"n_group", "num_expert_groups", "topk_group", "num_limited_groups"}) r.must_be(groups, 1);
  r.c.renormalise = true;
  r.c.added_to_sum = 1e-20;
  r.c.routed_scale = r.number_or("route_scale", 1);
  r.c.names.gate = "mlp.router.gate.weight";
  r.c.names.choice_bias = "mlp.expert_bias";
  r.shared_experts("num_shared_experts", 2);
  r.c.norm_place = NormPlace::both;
  r.c.names.attention_norm_behind = "post_attention_layernorm";
  r.c.names.mlp_norm = "pre_mlp_layernorm";
  r.c.names.mlp_norm_behind = "post_mlp_layernorm";
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.c.output_gate = true;
  r.c.names.output_gate = "self_attn.gate_proj.weight";
  r.attention_bias(false);
  if (r.f.flag("mup_enabled", false)) r.c.embedding_scale = std::sqrt(static_cast<double>(r.c.hidden));
  r.rope({.theta = 10000});
  const std::uint32_t first = r.whole_or("num_dense_layers", 1), every = r.whole_or("global_attn_every_n_layers", 4);
  if (every == 0) r.f.refuse("global_attn_every_n_layers", "a whole number from 1");
  r.dense_layers([&](std::uint32_t l) { return l < first; });
  r.windows(r.sliding_window(1024), [&](std::uint32_t l) { return (l + 1) % every != 0; });
  for (LayerConfig& layer : r.c.layer) layer.turns = layer.window > 0;
}

/// DeepSeek-MoE, the first version: ordinary attention.
void deepseek(FamilyReader& r) {
  r.experts({"n_routed_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  if (r.f.has("scoring_func") && r.f.at("scoring_func") != "softmax") r.f.refuse("scoring_func", "\"softmax\"");
  if (r.f.has("topk_method") && r.f.at("topk_method") != "greedy") r.f.refuse("topk_method", "\"greedy\"");
  r.c.renormalise = r.f.flag("norm_topk_prob", false) && r.c.top_k > 1;  // one alone keeps its weight
  r.shared_experts("n_shared_experts", 0);
  r.attention_bias(false);
  r.rope({.theta = 10000});
  const std::uint32_t first = r.whole_or("first_k_dense_replace", 0), every = r.whole_or("moe_layer_freq", 1);
  if (every == 0) r.f.refuse("moe_layer_freq", "a whole number from 1");
  r.dense_layers([&](std::uint32_t l) { return l < first || l % every != 0; });
  r.no_windows();
}

void deepseek_v2(FamilyReader& r) {
  r.experts({"n_routed_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  const std::string method = r.f.has("topk_method") ? r.f.text("topk_method") : "greedy";
  if (r.f.has("scoring_func") && r.f.at("scoring_func") != "softmax") r.f.refuse("scoring_func", "\"softmax\"");
  if (method == "group_limited_greedy") {
    r.groups(1, 0, 0);
  } else if (method != "greedy") {
    r.f.refuse("topk_method", "\"greedy\" or \"group_limited_greedy\"");
  } else {
    for (const char* name : {"n_group", "topk_group"}) static_cast<void>(r.whole_or(name, 0));
  }
  if (r.f.flag("norm_topk_prob", false)) {
    r.f.refuse("norm_topk_prob", "false: its makers' code and transformers' weigh such a model differently");
  }
  r.c.routed_scale = r.number_or("routed_scaling_factor", 1);
  r.shared_experts("n_shared_experts", 2);
  // transformers' code for this family ignores the field.
  if (!r.f.flag("rope_interleave", !r.f.is_null("rope_interleave")))
    r.f.refuse("rope_interleave", "true, nothing else is supported");
  r.latent_attention();
  r.dense_first(0);
  r.no_windows();
}

void deepseek_v3(FamilyReader& r) {
  r.experts({"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.sigmoid_gate("mlp.gate.e_score_correction_bias", {.groups = 8, .kept_groups = 4, .scale = 2.5});
  r.shared_experts("n_shared_experts", 1);
  r.latent_attention();
  r.dense_first(3);
  r.no_windows();
}

/// `sees`: images, too (GLM-4.5V, 4.6V).
void glm4_moe_texts(FamilyReader& r, bool sees) {
  r.experts({"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.sigmoid_gate("mlp.gate.e_score_correction_bias", {});
  r.shared_experts("n_shared_experts", 1);
  r.c.qkv_bias = r.f.flag("attention_bias", sees);
  if (r.f.flag("use_qk_norm", false)) r.c.head_norm = HeadNorm::heads_before_rope;
  r.rope({.partial = 0.5, .may_be_partial = true, .sections = sees});
  r.dense_first(1);
  r.no_windows();
}

void glm4_moe(FamilyReader& r) {
  glm4_moe_texts(r, false);
}

void glm4v_moe(FamilyReader& r) {
  glm4_moe_texts(r, true);
  r.c.names.model = "model.language_model.";
}

/// GLM-4.7-Flash: DeepSeek-V3's attention.
void glm4_moe_lite(FamilyReader& r) {
  r.experts({"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.sigmoid_gate("mlp.gate.e_score_correction_bias", {.scale = 1.8});
  r.shared_experts("n_shared_experts", 1);
  r.latent_attention();
  r.typed_layers(1);
  r.no_windows();
}

/// Mistral Small 4: DeepSeek-V3's attention with queries scaled up by position, and a softmax over all experts.
void mistral4(FamilyReader& r) {
  const bool sees = r.c.architecture_name == "Mistral3ForConditionalGeneration";
  if (sees && (!r.f.has("model_type") || r.f.at("model_type") != "mistral4")) {
    r.f.refuse("model_type", "\"mistral4\": other models of this architecture are not supported");
  }
  r.experts({"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  if (r.f.has("scoring_func") && r.f.at("scoring_func") != "softmax") r.f.refuse("scoring_func", "\"softmax\"");
  r.groups(2, 1, 1);
  r.c.renormalise = r.f.flag("norm_topk_prob", !r.f.is_null("norm_topk_prob"));
  r.c.added_to_sum = 1e-20;
  r.c.routed_scale = r.number_or("routed_scaling_factor", 1);
  r.shared_experts("n_shared_experts", 1);
  static const Json first_models = {{"rope_type", "yarn"},
                                    {"rope_theta", 10000.0},
                                    {"factor", 128.0},
                                    {"original_max_position_embeddings", 8192U},
                                    {"beta_fast", 32.0},
                                    {"beta_slow", 1.0},
                                    {"mscale", 1.0},
                                    {"mscale_all_dim", 1.0},
                                    {"llama_4_scaling_beta", 0.1}};
  r.latent_attention(&first_models);
  r.c.tuning = {r.c.rope.tuning, r.c.rope.tuning_floor, 0, true};
  r.c.storage = ExpertStorage::fused_rows;
  r.dense_first(0);
  r.no_windows();
  if (!sees) return;
  r.c.inner_names = r.c.names;
  r.c.inner_names->model = "model.language_model.";
  r.c.names.model = "language_model.model.";
  r.c.names.head = "language_model.lm_head.";
}

void solar_open(FamilyReader& r) {
  r.experts({"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.sigmoid_gate("mlp.gate.e_score_correction_bias", {});
  r.shared_experts("n_shared_experts", 1);
  r.c.qkv_bias = r.f.flag("attention_bias", false);
  r.rope({.theta = 1e6});
  r.must_be("first_k_dense_replace", 0);
  r.must_be_off({"use_qk_norm"});
  r.no_windows();
}

/// K-EXAONE: if there is a window, only the layers that attend to it have rotary positions.
void exaone_moe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.sigmoid_gate("mlp.e_score_correction_bias", {.scale = 2.5});
  r.c.inner_names.emplace().choice_bias = "mlp.gate.e_score_correction_bias";
  r.shared_experts("num_shared_experts", 1);
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.rope({.theta = 10000});
  r.typed_layers(1);
  const std::uint32_t window = r.sliding_window(4096);
  std::uint32_t every = 4;
  if (r.f.has("layer_types")) {
    static_cast<void>(r.f.has("sliding_window_pattern"));  // says the same as `layer_types`, in letters
  } else if (r.f.has("sliding_window_pattern") || r.f.is_null("sliding_window_pattern")) {
    every = r.f.whole("sliding_window_pattern", 1, largest_dimension);
  }
  r.windows(window, [&](std::uint32_t l) { return window > 0 && (l + 1) % every != 0; });
  for (LayerConfig& layer : r.c.layer) layer.turns = window == 0 || layer.window > 0;
}

/// Hunyuan 3.
void hy_v3(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.c.gate.gating = Gating::sigmoid;
  // Its makers' files may say what transformers takes for granted.
  for (const char* name :
       {"norm_topk_prob", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias", "qk_norm"}) {
    if (!r.f.flag(name, true)) r.f.refuse(name, "true, nothing else is supported");
  }
  r.must_be("expert_hidden_dim", r.c.expert_width);
  r.c.renormalise = true;
  r.c.added_to_sum = 1e-20;
  r.c.routed_scale = r.number_or("router_scaling_factor", 2.826);
  r.c.names.gate = "mlp.router.gate.weight";
  r.c.names.choice_bias = "mlp.expert_bias";
  r.c.names.shared = "mlp.shared_mlp.";
  r.c.inner_names.emplace().choice_bias = "mlp.e_score_correction_bias";
  r.shared_experts("num_shared_experts", 1);
  // In transformers a shared part of width 0 gets the width of dense layers.
  if (r.c.shared_width == 0) r.c.shared_width = r.f.whole("intermediate_size", 1, largest_dimension);
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.attention_bias(false);
  r.must_be_off({"mlp_bias"});
  static_cast<void>(r.f.has("enable_moe_fp32_combine"));  // all sums are in float32
  r.rope({.theta = 11158840});
  r.typed_layers(1);
  r.no_windows();
}

void dots1(FamilyReader& r) {
  r.experts({"n_routed_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.sigmoid_gate("mlp.gate.e_score_correction_bias", {.norm = false});
  r.shared_experts("n_shared_experts", 0);
  r.attention_bias(false);
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.rope();
  r.dense_first(0);
  const std::uint32_t window = r.sliding_window(4096), first = r.whole_or("max_window_layers", 62);
  r.windows(window, [&](std::uint32_t l) { return window > 0 && l >= first; });
}

void ernie4_5_moe(FamilyReader& r) {
  r.experts({"moe_num_experts", "num_experts"}, {"moe_k", "num_experts_per_tok"}, "moe_intermediate_size");
  r.c.names.choice_bias = "mlp.moe_statics.e_score_correction_bias";
  r.c.inner_names.emplace().choice_bias = "mlp.gate.moe_statics.e_score_correction_bias";
  r.c.renormalise = true;
  const bool none = r.f.has("moe_norm_min") && r.f.at("moe_norm_min") == 0;
  r.c.least_sum = none ? 0 : r.number_or("moe_norm_min", 1e-12);
  r.shared_experts("moe_num_shared_experts", 2);
  r.must_be_off({"use_bias"});
  r.rope({.theta = 500000, .neighbours = true});
  const std::uint32_t first = r.whole_or("moe_layer_start_index", 1), every = r.whole_or("moe_layer_interval", 1);
  std::uint32_t last = r.c.layers - 1;
  if (r.f.has("moe_layer_end_index") && r.f.at("moe_layer_end_index") != -1)
    last = r.f.whole("moe_layer_end_index", 0, largest_dimension);
  if (every == 0) r.f.refuse("moe_layer_interval", "a whole number from 1");
  r.dense_layers([&](std::uint32_t l) { return (l + 1) % every != 0 || l < first || l > last; });
  r.no_windows();
}

/// What all Granite models have in common, except types of layers.
void granite(FamilyReader& r) {
  r.experts({"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, "intermediate_size");
  r.c.names.gate = "block_sparse_moe.router.layer.weight";
  r.c.names.fused = {"block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"};
  r.c.inner_names.emplace().gate = "block_sparse_moe.router.weight";
  r.c.inner_names->fused = {"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"};
  r.c.storage = ExpertStorage::fused_rows;
  r.c.renormalise = true;
  r.attention_bias(false);
  r.c.attention_scale = r.number_or("attention_multiplier", 1);
  r.c.embedding_scale = r.number_or("embedding_multiplier", 1);
  r.c.residual_scale = r.number_or("residual_multiplier", 1);
  r.c.logit_scale = 1 / r.number_or("logits_scaling", 1);
  r.rope();
}

void granite_with_shared(FamilyReader& r, std::uint32_t absent) {
  granite(r);
  r.c.shared_width = r.whole_or("shared_intermediate_size", absent);
  r.c.names.shared_fused = {"shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"};
  r.c.inner_names->shared_fused = r.c.names.shared_fused;
}

void granitemoe(FamilyReader& r) {
  granite(r);
  r.no_windows();
}

void granitemoeshared(FamilyReader& r) {
  granite_with_shared(r, 0);
  r.no_windows();
}

/// Granite 4: Mamba 2 in most layers. Without rotary positions, only Mamba knows the order of tokens.
void granitemoehybrid(FamilyReader& r) {
  granite_with_shared(r, 1024);
  const Json none;
  const Json& positions = r.f.has("position_embedding_type") ? r.f.at("position_embedding_type") : none;
  if (!positions.is_null() && positions != "rope" && positions != "nope") {
    r.f.refuse("position_embedding_type", "\"rope\", \"nope\" or null");
  }
  for (LayerConfig& layer : r.c.layer) layer.turns = positions == "rope";
  LinearAttention& l = r.c.linear;
  l.rule = LinearRule::mamba;
  l.key_heads = r.f.has("mamba_n_groups") ? r.f.whole("mamba_n_groups", 1, 4096) : 1;
  l.value_heads = r.f.has("mamba_n_heads") ? r.f.whole("mamba_n_heads", 1, 4096) : 128;
  if (l.value_heads % l.key_heads != 0) {
    r.f.refuse("mamba_n_heads", fmt::format("a multiple of {} groups", l.key_heads));
  }
  l.key_dim = r.f.has("mamba_d_state") ? r.f.whole("mamba_d_state", 1, 4096) : 256;
  l.kernel = r.f.has("mamba_d_conv") ? r.f.whole("mamba_d_conv", 1, 64) : 4;
  const std::uint64_t width = std::uint64_t{r.whole_or("mamba_expand", 2, 64)} * r.c.hidden;
  if (width == 0 || width % l.value_heads != 0 || width / l.value_heads > 4096) {
    r.f.refuse("mamba_expand",
               fmt::format("times hidden_size a multiple of {} heads, of at most 4096 each", l.value_heads));
  }
  l.value_dim = static_cast<std::uint32_t>(width / l.value_heads);
  if (r.f.has("mamba_d_head") && r.f.at("mamba_d_head") != "auto") r.must_be("mamba_d_head", l.value_dim);
  l.kernel_bias = r.f.flag("mamba_conv_bias", true);
  l.bias = r.f.flag("mamba_proj_bias", false);
  if (r.f.has("time_step_limit")) {  // transformers 5 writes infinity as an object
    const Json& limit = r.f.at("time_step_limit");
    const bool none_at_all =
        limit.is_array() && limit.size() == 2 && limit[0] == 0 && limit[1] == Json{{"__float__", "Infinity"}};
    if (!none_at_all) r.f.refuse("time_step_limit", "null, or from 0 to infinity: others are not supported");
  }
  if (r.f.has("normalization_function") && r.f.at("normalization_function") != "rmsnorm") {
    r.f.refuse("normalization_function", "\"rmsnorm\"");
  }
  static_cast<void>(r.f.has("mamba_chunk_size"));  // only the makers' kernels use it: results do not depend on it
  // Files on the hub and files that transformers writes name the types differently.
  r.layer_types(
      {"attention", "full_attention", "mamba", "linear_attention"}, [](std::uint32_t) { return 3U; },
      [&](std::uint32_t n, std::uint32_t type) { r.c.layer[n].linear = type >= 2; });
}

/// Layers that attend to all tokens have other heads than layers with a window. Newer files list heads layer by layer.
void gemma4_heads(FamilyReader& r) {
  const bool by_layer = r.f.has("per_layer_config") || r.f.is_null("per_layer_config");
  const bool keys_are_values = r.f.flag("attention_k_eq_v", false);
  if (!r.f.has("head_dim")) r.c.head_dim = 256;
  const bool said = r.f.has("global_head_dim") || r.f.is_null("global_head_dim");
  const std::uint32_t dim = said ? r.f.whole("global_head_dim", 2, 4096) : 512;
  const std::uint32_t kv_heads =
      r.f.has("num_global_key_value_heads") ? r.f.whole("num_global_key_value_heads", 1, 4096) : r.c.kv_heads;
  for (LayerConfig& layer : r.c.layer) {
    const bool full = layer.window == 0;
    layer.keys_are_values = full && keys_are_values;
    layer.head_dim = full && !by_layer ? dim : r.c.head_dim;
    layer.kv_heads = layer.keys_are_values && !by_layer ? kv_heads : r.c.kv_heads;
  }
  if (r.f.has("per_layer_config")) r.heads_by_layer("per_layer_config");
  for (const LayerConfig& layer : r.c.layer) {
    const LayerConfig& first = *std::find_if(r.c.layer.begin(), r.c.layer.end(), [&](const LayerConfig& other) {
      return (other.window > 0) == (layer.window > 0);
    });
    if (layer.head_dim != first.head_dim || layer.kv_heads != first.kv_heads) {
      r.f.refuse("per_layer_config", "the same heads for all layers with a window, and for all without");
    }
    if (layer.head_dim % 2 != 0) r.f.refuse(by_layer ? "per_layer_config" : "global_head_dim", "an even number");
    if (r.c.heads % layer.kv_heads != 0) {
      r.f.refuse(by_layer ? "per_layer_config" : "num_global_key_value_heads",
                 fmt::format("a divisor of {} heads for those of keys and values", r.c.heads));
    }
  }
}

/// Gemma 4: experts beside an MLP, each with norms of its own. Every few layers attend to all tokens, with other heads.
void gemma4(FamilyReader& r) {
  r.c.experts = r.f.whole("num_experts", 1, most_experts);
  r.c.top_k = r.f.whole("top_k_experts", 1, r.c.experts);
  r.c.expert_width = r.f.whole("moe_intermediate_size", 1, largest_dimension);
  r.c.shared_width = r.f.whole("intermediate_size", 1, largest_dimension);
  if (!r.f.flag("enable_moe_block", false)) r.f.refuse("enable_moe_block", "true: without experts it is not supported");
  if (!r.f.has("hidden_size_per_layer_input") || r.f.at("hidden_size_per_layer_input") != 0) {
    r.f.refuse("hidden_size_per_layer_input", "0, embeddings of layers are not supported");
  }
  static_cast<void>(r.f.has("vocab_size_per_layer_input"));
  r.must_be("num_kv_shared_layers", 0);
  static_cast<void>(r.f.has("use_double_wide_mlp"));  // concerns only layers that share keys and values
  if (r.f.has("use_bidirectional_attention") && r.f.at("use_bidirectional_attention") != "vision") {
    r.f.refuse("use_bidirectional_attention", "\"vision\" or null: tokens of texts see those before them only");
  }
  if (r.f.has("hidden_activation") && r.f.text("hidden_activation") != "gelu_pytorch_tanh") {
    r.f.refuse("hidden_activation", "\"gelu_pytorch_tanh\"");
  }
  TensorNames& n = r.c.names;
  if (r.c.architecture_name == "Gemma4ForConditionalGeneration") n.model = "model.language_model.";
  n.attention_norm_behind = "post_attention_layernorm";
  n.mlp_norm = "pre_feedforward_layernorm";
  n.mlp_norm_behind = "post_feedforward_layernorm";
  n.shared_norm_behind = "post_feedforward_layernorm_1";
  n.experts_norm = "pre_feedforward_layernorm_2";
  n.experts_norm_behind = "post_feedforward_layernorm_2";
  n.layer_scale = "layer_scalar";
  n.gate = "router.proj.weight";
  n.gate_scale = "router.scale";
  n.expert_scale = "router.per_expert_scale";
  n.fused = {"experts.gate_up_proj", "experts.down_proj"};
  n.shared = "mlp.";
  r.c.storage = ExpertStorage::fused_rows;
  r.c.norm_place = NormPlace::both;
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.c.value_norm = true;
  r.c.glu.gelu = true;
  r.c.renormalise = true;
  r.c.attention_scale = 1;
  r.c.embedding_scale = std::sqrt(static_cast<double>(r.c.hidden));
  r.c.logit_cap = r.number_or("final_logit_softcapping", 0);
  r.attention_bias(false);

  r.windows(r.sliding_window(512), [](std::uint32_t l) { return (l + 1) % 6 != 0; });
  r.c.layer.back().window = 0;  // whatever `layer_types` says
  gemma4_heads(r);
  const auto with_window = [](const LayerConfig& layer) { return layer.window > 0; };
  const LayerConfig& full = *std::find_if_not(r.c.layer.begin(), r.c.layer.end(), with_window);
  static const Json plain = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  static const Json in_part = {
      {"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1000000.0}};
  // Layers with a window keep the file's context: stretching applies to the layers without one.
  const std::uint32_t context = r.c.context;
  r.rope({.head_dim = full.head_dim, .absent = &in_part, .layer_type = "full_attention"});
  const auto some = std::find_if(r.c.layer.begin(), r.c.layer.end(), with_window);
  const LayerConfig& usual = some == r.c.layer.end() ? full : *some;
  r.c.head_dim = usual.head_dim;
  r.c.kv_heads = usual.kv_heads;
  if (some == r.c.layer.end()) return;
  r.c.window_rope = read_rope(
      r.f, {.head_dim = usual.head_dim, .context = context, .absent = &plain, .layer_type = "sliding_attention"});
  if (r.c.window_rope->within_context) r.c.context = context;
}

void hunyuan_v1_moe(FamilyReader& r) {
  const std::string top_k = r.one_of({"moe_topk", "num_experts_per_tok"});
  r.c.experts = r.by_layer("num_experts", most_experts, &LayerConfig::experts);
  r.c.top_k = r.by_layer(top_k, most_experts, &LayerConfig::top_k);
  for (std::uint32_t l = 0; l < r.c.layers; ++l) {
    const auto has = [](std::uint32_t own, std::uint32_t all) { return own == 0 ? all : own; };
    const std::uint32_t experts = has(r.c.layer[l].experts, r.c.experts);
    if (has(r.c.layer[l].top_k, r.c.top_k) <= experts) continue;
    r.f.refuse(top_k, fmt::format("at most the number of experts, which is {} in layer {}", experts, l));
  }
  const std::uint32_t width = r.f.whole("intermediate_size", 1, largest_dimension);
  r.c.expert_width = r.f.has("moe_intermediate_size")
                         ? r.by_layer("moe_intermediate_size", largest_dimension, &LayerConfig::expert_width)
                         : width;
  if (r.f.has("use_mixed_mlp_moe") && !r.f.flag("use_mixed_mlp_moe", true)) {
    r.f.refuse("use_mixed_mlp_moe", "true, without a shared expert it is not supported");
  }
  const std::uint32_t shared =
      r.f.has("num_shared_expert") ? r.by_layer("num_shared_expert", 64, &LayerConfig::shared_width) : 1;
  r.c.shared_width = shared * width;
  for (LayerConfig& layer : r.c.layer) layer.shared_width *= width;
  r.c.names.gate = "mlp.gate.wg.weight";
  r.c.names.shared = "mlp.shared_mlp.";
  r.c.names.q_norm = "self_attn.query_layernorm.weight";
  r.c.names.k_norm = "self_attn.key_layernorm.weight";
  r.c.renormalise = true;
  if (r.f.flag("use_qk_norm", true)) r.c.head_norm = HeadNorm::heads_behind_rope;
  r.must_be_off({"use_cla", "group_limited_greedy", "mlp_bias", "add_classification_head"});
  r.must_be("moe_layer_num_skipped", 0);
  r.attention_bias(false);
  r.rope({.theta = 10000, .alpha = true});
  r.no_windows();
}

void minimax_m2(FamilyReader& r) {
  r.block_sparse_names();
  r.experts({"num_local_experts", "num_experts"}, {"num_experts_per_tok"}, "intermediate_size");
  r.c.gate.gating = Gating::sigmoid;
  if (r.f.flag("use_routing_bias", true)) {
    r.c.names.choice_bias = "block_sparse_moe.e_score_correction_bias";
    r.c.inner_names->choice_bias = "mlp.e_score_correction_bias";
  }
  if (!r.f.flag("use_qk_norm", true)) r.f.refuse("use_qk_norm", "true, without them it is not supported");
  r.must_be("shared_intermediate_size", 0);
  if (r.f.has("attn_type_list")) {
    const Json& types = r.f.at("attn_type_list");
    if (!types.is_array() || std::any_of(types.begin(), types.end(), [](const Json& t) { return t != 1; })) {
      r.f.refuse("attn_type_list", "1 for every layer, lightning attention is not supported");
    }
  }
  if (r.f.has("scoring_func") && r.f.at("scoring_func") != "sigmoid") r.f.refuse("scoring_func", "\"sigmoid\"");
  r.c.renormalise = true;
  r.c.head_norm = HeadNorm::all_before_rope;
  if (r.f.has("qk_norm_type") && r.f.at("qk_norm_type") != "per_layer") r.f.refuse("qk_norm_type", "\"per_layer\"");
  const double turned = r.whole_or("rotary_dim", r.c.head_dim, r.c.head_dim);
  r.rope({.theta = 5e6, .partial = turned / r.c.head_dim, .may_be_partial = true});
  r.no_windows();
}

void gpt_oss(FamilyReader& r) {
  r.experts({"num_local_experts", "num_experts"}, {"num_experts_per_tok", "experts_per_token"}, "intermediate_size");
  r.c.names.gate = "mlp.router.weight";
  r.c.names.gate_bias = "mlp.router.bias";
  r.c.storage = ExpertStorage::interleaved_columns;
  r.c.expert_bias = true;
  r.c.glu = {true, static_cast<float>(r.number_or("swiglu_alpha", 1.702)),
             static_cast<float>(r.number_or("swiglu_limit", 7.0))};
  r.c.renormalise = true;
  r.attention_bias(true);
  r.c.sinks = true;
  // Null is ambiguous: transformers 4 reads it as no scaling, transformers 5 as the scaling of the first models.
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (r.f.is_null(name) && !r.f.has("rope_scaling") && !r.f.has("rope_parameters")) {
      r.f.refuse(name, "a kind of rotary embedding, \"rope_type\": \"default\" for the plain one");
    }
  }
  static const Json first_models = {{"rope_type", "yarn"}, {"factor", 32.0},
                                    {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                    {"truncate", false},   {"original_max_position_embeddings", 4096U}};
  r.rope({.theta = 150000, .absent = &first_models});
  r.windows(r.sliding_window(128), [](std::uint32_t l) { return l % 2 == 0; });
}

void llama4(FamilyReader& r) {
  r.c.experts = r.whole({"num_local_experts", "num_experts"}, 1, most_experts);
  r.c.top_k = r.f.whole("num_experts_per_tok", 1, r.c.experts);
  r.c.expert_width = r.c.shared_width = r.f.whole("intermediate_size", 1, largest_dimension);
  r.c.dense_width = r.f.whole("intermediate_size_mlp", 1, largest_dimension);
  r.c.names.gate = "feed_forward.router.weight";
  r.c.names.fused = {"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"};
  r.c.names.shared = "feed_forward.shared_expert.";
  r.c.names.dense = "feed_forward.";
  r.c.storage = ExpertStorage::fused_columns;
  r.c.gate.gating = Gating::sigmoid;
  r.c.gate.by_logit = true;
  r.c.glu.weighs_input = true;
  r.attention_bias(false);
  if (r.f.flag("use_qk_norm", true)) r.c.head_norm = HeadNorm::plain_behind_rope;
  r.rope({.theta = 500000, .neighbours = true});
  const std::uint32_t step = r.whole_or("interleave_moe_layer_step", 1),
                      plain = r.whole_or("no_rope_layer_interval", 4);
  if (step == 0) r.f.refuse("interleave_moe_layer_step", "a whole number from 1");
  if (plain == 0) r.f.refuse("no_rope_layer_interval", "a whole number from 1");
  const std::vector<bool> moe =
      r.numbers_of_layers("moe_layers", [&](std::uint32_t l) { return l % step == step - 1; });
  for (std::uint32_t l = 0; l < r.c.layers; ++l) {
    r.c.layer[l].moe = moe[l];
    r.c.layer[l].turns = (l + 1) % plain != 0;
  }
  if (r.f.has("no_rope_layers") && r.f.at("no_rope_layers") != Json::array()) {
    const Json& list = r.f.at("no_rope_layers");
    bool fits = list.is_array() && list.size() == r.c.layers;
    for (std::uint32_t l = 0; fits && l < r.c.layers; ++l) {
      fits = list[l] == 0 || list[l] == 1;
      r.c.layer[l].turns = list[l] == 1;
    }
    if (!fits) r.f.refuse("no_rope_layers", fmt::format("a list of {} times 0 or 1", r.c.layers));
  }
  std::uint32_t chunk = r.f.is_null("attention_chunk_size") ? 0 : 8192;
  if (r.f.has("attention_chunk_size")) chunk = r.f.whole("attention_chunk_size", 1, 1U << 28U);
  r.layer_types(
      {"full_attention", "chunked_attention"}, [&](std::uint32_t l) { return r.c.layer[l].turns ? 1U : 0U; },
      [&](std::uint32_t l, std::uint32_t type) { r.c.layer[l].chunk = type == 1 ? chunk : 0; });
  // In older files it is a number, not a flag.
  const bool tuned = !r.f.has("attn_temperature_tuning") || !r.f.at("attn_temperature_tuning").is_number()
                         ? r.f.flag("attn_temperature_tuning", true)
                         : r.f.whole("attn_temperature_tuning", 0, 0xffffffffU) != 0;
  const double tuning = r.number_or("attn_scale", 0.1);
  r.c.tuning = {tuned ? tuning : 0, r.number_or("floor_scale", 8192), 1, false};
  if (r.c.architecture_name == "Llama4ForConditionalGeneration") {
    r.c.names.model = "language_model.model.";
    r.c.names.head = "language_model.lm_head.";
  }
}

/// Layers with the gated delta rule, and some with ordinary attention whose outputs have gates.
void gated_delta(FamilyReader& r, bool fused) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.c.shared_width = r.f.whole("shared_expert_intermediate_size", 1, largest_dimension);
  r.c.names.shared = "mlp.shared_expert.";
  r.c.names.shared_scale = "mlp.shared_expert_gate.weight";
  r.c.renormalise = r.f.flag("norm_topk_prob", true);
  r.c.norm = Norm::rms_plus_one;
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.c.output_gate = true;
  if (!r.f.flag("attn_output_gate", true)) r.f.refuse("attn_output_gate", "true, without gates it is not supported");
  r.attention_bias(false);
  r.rope({.theta = 10000, .partial = 0.25, .may_be_partial = true, .sections = !fused});
  LinearAttention& l = r.c.linear;
  l.key_heads = r.f.whole("linear_num_key_heads", 1, 4096);
  l.value_heads = r.f.whole("linear_num_value_heads", 1, 4096);
  if (l.value_heads % l.key_heads != 0) {
    r.f.refuse("linear_num_value_heads", fmt::format("a multiple of {} key heads", l.key_heads));
  }
  l.key_dim = r.f.whole("linear_key_head_dim", 1, 4096);
  l.value_dim = r.f.whole("linear_value_head_dim", 1, 4096);
  l.kernel = r.f.whole("linear_conv_kernel_dim", 1, 64);
  l.fused = fused;
  const std::uint32_t every = r.whole_or("full_attention_interval", 4);
  if (every == 0) r.f.refuse("full_attention_interval", "a whole number from 1");
  r.layer_types(
      {"full_attention", "linear_attention"}, [&](std::uint32_t n) { return (n + 1) % every != 0 ? 1U : 0U; },
      [&](std::uint32_t n, std::uint32_t type) { r.c.layer[n].linear = type == 1; });
  r.sparse_layers();
}

/// Short convolutions, and some layers with ordinary attention.
void lfm2_moe(FamilyReader& r) {
  r.experts({"num_experts", "num_local_experts"}, {"num_experts_per_tok"}, "moe_intermediate_size");
  r.c.norm_epsilon = r.number_or("norm_eps", 1e-5);
  r.c.tied_embeddings = r.f.flag("tie_embedding", r.c.tied_embeddings);
  r.c.gate.gating = Gating::sigmoid;
  r.c.renormalise = r.f.flag("norm_topk_prob", true);
  r.c.added_to_sum = 1e-6;
  r.c.routed_scale = r.number_or("routed_scaling_factor", 1);
  TensorNames& n = r.c.names;
  n.norm = "embedding_norm";
  n.attention_norm = "operator_norm";
  n.mlp_norm = "ffn_norm";
  n.q_norm = "self_attn.q_layernorm.weight";
  n.k_norm = "self_attn.k_layernorm.weight";
  n.output = "self_attn.out_proj";
  n.gate = "feed_forward.gate.weight";
  if (r.f.flag("use_expert_bias", true)) n.choice_bias = "feed_forward.expert_bias";
  n.experts = "feed_forward.experts.";
  n.fused = {"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"};
  n.dense = "feed_forward.";
  n.parts = n.mlp_parts = {"w1", "w3", "w2"};
  r.c.head_norm = HeadNorm::heads_before_rope;
  r.must_be_off({"conv_bias"});
  r.rope({.theta = 1e6});
  r.c.linear.rule = LinearRule::convolution;
  r.c.linear.kernel = r.f.has("conv_L_cache") ? r.f.whole("conv_L_cache", 1, 64) : 3;
  if (!r.f.has("layer_types")) r.f.refuse("layer_types", R"(a list of "full_attention" and "conv")");
  r.layer_types(
      {"full_attention", "conv"}, [](std::uint32_t) { return 0U; },
      [&](std::uint32_t l, std::uint32_t type) { r.c.layer[l].linear = type == 1; });
  const std::uint32_t first = r.whole_or("num_dense_layers", 2);
  r.dense_layers([&](std::uint32_t l) { return l < first; });
}

void qwen3_next(FamilyReader& r) {
  gated_delta(r, true);
}

void qwen3_5_moe(FamilyReader& r) {
  gated_delta(r, false);
  if (!r.c.renormalise) r.f.refuse("norm_topk_prob", "true, this family always divides weights by their sum");
  if (r.c.architecture_name == "Qwen3_5MoeForConditionalGeneration") r.c.names.model = "model.language_model.";
}

/// XVERSE-MoE: DeepSeek-MoE's layout with other names, every layer with experts.
void xverse(FamilyReader& r) {
  r.experts({"num_experts"}, {"moe_top_k", "num_experts_per_tok"}, "intermediate_size");
  r.c.names.gate = "mlp.router.weight";
  r.c.renormalise = true;
  r.shared_experts("num_shared_experts", 0);
  r.attention_bias(false);
  r.rope({.theta = 10000});
  r.no_windows();
}

struct Family {
  const char* architecture;
  void (*read)(FamilyReader&);
  FamilyDefaults defaults;
  bool tied = false;  ///< embeddings, where the file does not say
};

constexpr Family families[] = {
    {"AfmoeForCausalLM", afmoe, {1e-5, {}}},
    {"DeepseekForCausalLM", deepseek, {1e-6, 100001}},
    {"DeepseekV2ForCausalLM", deepseek_v2, {1e-6, 2, true}},
    {"DeepseekV3ForCausalLM", deepseek_v3, {1e-6, 1, true}},
    {"Dots1ForCausalLM", dots1, {1e-6, {}}},
    {"Ernie4_5_MoeForCausalLM", ernie4_5_moe, {1e-5, 2}, true},
    {"ExaoneMoEForCausalLM", exaone_moe, {1e-5, 53}},
    {"ExaoneMoeForCausalLM", exaone_moe, {1e-5, 53}},
    {"FlexOlmoForCausalLM", flex_olmo, {1e-6, 100257}},
    {"Gemma4ForCausalLM", gemma4, {1e-6, 1}, true},
    {"Gemma4ForConditionalGeneration", gemma4, {1e-6, 1}, true},
    {"Glm4MoeForCausalLM", glm4_moe, {1e-5, {}}},
    {"Glm4MoeLiteForCausalLM", glm4_moe_lite, {1e-5, 1, true}},
    {"Glm4vMoeForConditionalGeneration", glm4v_moe, {1e-5, {}, false, FamilyDefaults::Tied::either}},
    {"GptOssForCausalLM", gpt_oss, {1e-5, {}}},
    {"GraniteMoeForCausalLM", granitemoe, {1e-6, 2}},
    {"GraniteMoeHybridForCausalLM", granitemoehybrid, {1e-6, 2}},
    {"GraniteMoeSharedForCausalLM", granitemoeshared, {1e-6, 2}},
    {"HYV3ForCausalLM", hy_v3, {1e-5, {}}},
    {"HunYuanMoEV1ForCausalLM", hunyuan_v1_moe, {1e-5, 2}},
    {"Lfm2MoeForCausalLM", lfm2_moe, {1e-5, 2}, true},
    {"Llama4ForCausalLM", llama4, {1e-5, 2}},
    {"Llama4ForConditionalGeneration", llama4, {1e-5, 2, false, FamilyDefaults::Tied::text}},
    {"MiniMaxM2ForCausalLM", minimax_m2, {1e-6, 200020}},
    {"Mistral3ForConditionalGeneration", mistral4, {1e-6, 2, true}},
    {"Mistral4ForCausalLM", mistral4, {1e-6, 2, true}},
    {"MixtralForCausalLM", mixtral, {1e-5, 2}},
    {"OlmoeForCausalLM", olmoe, {1e-5, 50279}},
    {"PhiMoEForCausalLM", phimoe, {1e-5, 2}},
    {"PhimoeForCausalLM", phimoe, {1e-5, 2}},
    {"Qwen2MoeForCausalLM", qwen2_moe, {1e-6, {}}},
    {"Qwen3MoeForCausalLM", qwen3_moe, {1e-6, {}}},
    {"Qwen3NextForCausalLM", qwen3_next, {1e-6, {}}},
    {"Qwen3VLMoeForConditionalGeneration", qwen3_vl_moe, {1e-6, {}, false, FamilyDefaults::Tied::root}},
    {"Qwen3_5MoeForCausalLM", qwen3_5_moe, {1e-6, {}}},
    {"Qwen3_5MoeForConditionalGeneration", qwen3_5_moe, {1e-6, {}}},
    {"SolarOpenForCausalLM", solar_open, {1e-5, {}}},
    {"XverseForCausalLM", xverse, {1e-6, {}}}};

/// Models in common use that this engine does not support, each with the part that is missing.
struct Missing {
  const char *architecture, *part;
};

constexpr Missing not_computed[] = {
    {"BailingMoeForCausalLM", "fused attention"},
    {"BailingMoeV2ForCausalLM", "fused attention"},
    {"DbrxForCausalLM", "its fused attention and experts"},
    {"DeepseekV32ForCausalLM", "sparse attention"},
    {"GlmMoeDsaForCausalLM", "sparse attention"},
    {"JambaForCausalLM", "Mamba layers"},
    {"KimiLinearForCausalLM", "Kimi's delta attention"},
    {"LongcatFlashForCausalLM", "experts that compute nothing and layers with two attentions"},
    {"MiMoV2FlashForCausalLM", "heads whose number differs by layer"},
    {"MiniMaxForCausalLM", "lightning attention"},
    {"MiniMaxM1ForCausalLM", "lightning attention"},
    {"NemotronHForCausalLM", "Mamba layers"},
};

const Family* find_family(const std::string& architecture) {
  const auto* const found = std::find_if(std::begin(families), std::end(families),
                                         [&](const Family& one) { return one.architecture == architecture; });
  return found != std::end(families) ? found : nullptr;
}

}  // namespace

std::vector<std::string> supported_architectures() {
  std::vector<std::string> all;
  for (const Family& f : families) all.emplace_back(f.architecture);
  return all;
}

FamilyDefaults family_defaults(const Fields& f, const std::string& architecture) {
  if (const Family* const family = find_family(architecture)) return family->defaults;
  const auto lacks = std::find_if(std::begin(not_computed), std::end(not_computed),
                                  [&](const Missing& one) { return one.architecture == architecture; });
  if (lacks != std::end(not_computed)) {
    f.refuse("architectures",
             fmt::format("another family: {} has {}, which the engine does not compute", architecture, lacks->part));
  }
  // Each ending is printed once, to keep the message short enough.
  const std::string text = "ForCausalLM", sight = "ForConditionalGeneration";
  std::vector<std::string> reads, sees;
  for (const std::string& name : supported_architectures()) {
    const bool is_text = name.ends_with(text);
    (is_text ? reads : sees).push_back(name.substr(0, name.size() - (is_text ? text : sight).size()));
  }
  f.refuse("architectures", fmt::format("one of {} with {} behind it, or {} with {}", fmt::join(reads, ", "), text,
                                        fmt::join(sees, ", "), sight));
}

void read_family(const Fields& f, ModelConfig& c) {
  const Family* const found = find_family(c.architecture_name);
  c.tied_embeddings = f.flag("tie_word_embeddings", found->tied);
  FamilyReader reader(f, c);
  found->read(reader);
}

}  // namespace ferry::engine
