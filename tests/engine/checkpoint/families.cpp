// What the configurations of many families say, in the forms of hub files and of transformers; and what is refused or named.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "checkpoint/model_config.hpp"
#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "support/json.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

const Json left_out = Json(Json::value_t::discarded);

/// A family's config.json with fields set, or removed by a discarded value.
Json config_with(const std::string& family, const std::vector<std::pair<std::string, Json>>& fields) {
  Json config = read_json(golden_file("zoo") / family / "config.json");
  for (const auto& [name, value] : fields) {
    config[name] = value;
    if (value.is_discarded()) config.erase(name);
  }
  return config;
}

ModelConfig read(const std::string& family, const std::vector<std::pair<std::string, Json>>& fields = {}) {
  return config_from(parse_json(config_with(family, fields).dump(), "config.json"), "config.json");
}

std::string refused_family(const std::string& family, const std::vector<std::pair<std::string, Json>>& fields) {
  return refusal("config.json", [&] { static_cast<void>(read(family, fields)); });
}

}  // namespace

TEST_CASE("families that are not computed are refused by name, with what they need") {
  for (const auto& [architecture, part] :
       {std::pair{"DbrxForCausalLM", "fused attention"}, std::pair{"JambaForCausalLM", "Mamba layers"},
        std::pair{"MiniMaxForCausalLM", "lightning attention"}, std::pair{"GlmMoeDsaForCausalLM", "sparse attention"},
        std::pair{"NemotronHForCausalLM", "Mamba layers"}}) {
    CHECK(says(refused_family("mixtral", {{"architectures", {architecture}}}), {architecture, part}));
  }
  CHECK(says(refused_family("mixtral", {{"architectures", {"LlamaForCausalLM"}}}),
             {"one of Afmoe, Deepseek, DeepseekV2, ", "Xverse with ForCausalLM behind it, or Gemma4, ",
              "Qwen3VLMoe, Qwen3_5Moe with ForConditionalGeneration", "got [\"LlamaForCausalLM\"]"}));
  // The name decides, whatever else the files say or spell differently.
  const Json dbrx = {{"architectures", {"DbrxForCausalLM"}}, {"d_model", 64}, {"n_layers", 2}};
  CHECK(says(refusal("config.json", [&] { static_cast<void>(config_from(dbrx, "config.json")); }),
             {"DbrxForCausalLM has its fused attention and experts"}));
}

TEST_CASE("what a file does not say is as transformers has it") {
  struct Absent {
    const char* family;
    double norm_epsilon;
    std::uint32_t end_token;
  };
  constexpr std::uint32_t none = no_token;
  // As in transformers 5.23: AutoConfig.for_model(model_type).
  for (const Absent& one :
       {Absent{"deepseek_v2", 1e-6, 2}, Absent{"deepseek_v3", 1e-6, 1}, Absent{"dots1", 1e-6, none},
        Absent{"ernie4_5_moe", 1e-5, 2}, Absent{"flex_olmo", 1e-6, 100257}, Absent{"glm4_moe", 1e-5, none},
        Absent{"gpt_oss", 1e-5, none}, Absent{"granitemoe", 1e-6, 2}, Absent{"granitemoeshared", 1e-6, 2},
        Absent{"hunyuan_v1_moe", 1e-5, 2}, Absent{"llama4", 1e-5, 2}, Absent{"minimax_m2", 1e-6, 200020},
        Absent{"mixtral", 1e-5, 2}, Absent{"olmoe", 1e-5, 50279}, Absent{"phimoe", 1e-5, 2},
        Absent{"qwen2_moe", 1e-6, none}, Absent{"qwen3_moe", 1e-6, none}, Absent{"qwen3_next", 1e-6, none},
        Absent{"qwen3_5_moe", 1e-6, none}, Absent{"glm4_moe_lite", 1e-5, 1}, Absent{"exaone_moe", 1e-5, 53},
        Absent{"hy_v3", 1e-5, none}, Absent{"solar_open", 1e-5, none}, Absent{"afmoe", 1e-5, none},
        Absent{"lfm2_moe", 1e-5, 2}, Absent{"gemma4", 1e-6, 1}, Absent{"granitemoehybrid", 1e-6, 2},
        // As in their published configuration files. What ends a text of XVERSE-MoE is not known.
        Absent{"deepseek_moe", 1e-6, 100001}, Absent{"xverse_moe", 1e-6, none}}) {
    CAPTURE(one.family);
    const Json gone = left_out;
    const ModelConfig c = read(
        one.family, {{"rms_norm_eps", gone}, {"hidden_act", gone}, {"eos_token_id", gone}, {"vocab_size", 300000}});
    CHECK(c.norm_epsilon == one.norm_epsilon);
    CHECK(c.end_tokens == (one.end_token == none ? std::vector<std::uint32_t>{} : std::vector{one.end_token}));
  }
  CHECK(read("olmoe", {{"eos_token_id", left_out}}).end_tokens.empty());  // it has no such token
  CHECK(says(refused_family("mixtral", {{"rms_norm_eps", nullptr}}), {"field \"rms_norm_eps\""}));
  CHECK(says(refused_family("mixtral", {{"hidden_act", nullptr}}), {"field \"hidden_act\""}));
}

TEST_CASE("configs of transformers 4: rope at the top level") {
  const Json gone = left_out;
  const ModelConfig v5 = read("qwen3_moe_yarn");
  const ModelConfig v4 =
      read("qwen3_moe_yarn",
           {{"rope_parameters", gone},
            {"rope_theta", 10000.0},
            {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}}}});
  CHECK(v4.rope.frequency == v5.rope.frequency);
  CHECK(v4.rope.scale == v5.rope.scale);
  CHECK(v5.rope.scale == doctest::Approx(0.1 * std::log(4.0) + 1));
  CHECK(
      read("glm4_moe", {{"rope_parameters", gone}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}).rope.width ==
      8);
  CHECK(read("glm4_moe", {{"rope_parameters", gone}, {"rope_theta", 1e6}}).rope.width == 16);  // the family's own half
  CHECK(read("glm4_moe", {{"rope_parameters", gone}, {"rope_theta", 1e6}, {"partial_rotary_factor", nullptr}})
            .rope.width == 32);  // transformers reads a null like this
  CHECK(says(refused_family("mixtral", {{"partial_rotary_factor", 0.5}}),
             {"field \"partial_rotary_factor\": expected none"}));
}

TEST_CASE("rope types, by their definitions") {
  const auto rope = [](const Json& parameters, const std::vector<std::pair<std::string, Json>>& more = {}) {
    std::vector<std::pair<std::string, Json>> fields = more;
    fields.emplace_back("rope_parameters", parameters);
    return read("phimoe", fields).rope;
  };
  const Rope plain = rope({{"rope_type", "default"}, {"rope_theta", 100.0}});
  CHECK(plain.width == 16);
  CHECK(plain.frequency[4] == doctest::Approx(0.1));  // 100^(-8/16)
  CHECK(rope({{"rope_type", "linear"}, {"rope_theta", 100.0}, {"factor", 4.0}}).frequency[4] == doctest::Approx(0.025));
  CHECK(rope({{"rope_type", "dynamic"}, {"rope_theta", 100.0}, {"factor", 4.0}}).frequency == plain.frequency);
  // A stretched model need not state its longer context, too: Qwen3's makers do not.
  const auto context = [](const Json& parameters) {
    return read("qwen3_moe", {{"max_position_embeddings", 80}, {"rope_parameters", parameters}}).context;
  };
  Json yarn = {{"rope_type", "yarn"}, {"rope_theta", 100.0}, {"factor", 4.0}};
  CHECK(context(yarn) == 80);
  yarn["original_max_position_embeddings"] = 64;
  CHECK(context(yarn) == 256);
  yarn["original_max_position_embeddings"] = 10;
  CHECK(context(yarn) == 80);
  const Json fixed = {{"type", "dynamic"}, {"alpha", 10.0}};  // only Hunyuan has this
  const ModelConfig stretched =
      read("hunyuan_v1_moe", {{"rope_parameters", left_out}, {"rope_scaling", fixed}, {"rope_theta", 100.0}});
  CHECK(stretched.rope.width == 16);
  CHECK(stretched.rope.frequency[4] == doctest::Approx(std::pow(100 * std::pow(10.0, 16.0 / 14), -0.5)));
  CHECK(says(refused_family("phimoe", {{"rope_parameters", {{"rope_type", "dynamic"}, {"alpha", 10.0}}}}),
             {"field \"alpha\": expected none"}));

  // As in Phi: the original length stands beside the factors, above them, or in both places.
  const Json eights = Json::array({2, 2, 2, 2, 2, 2, 2, 2}), fours = Json::array({4, 4, 4, 4, 4, 4, 4, 4});
  Json phi = {{"type", "longrope"},
              {"rope_theta", 100.0},
              {"short_factor", eights},
              {"long_factor", fours},
              {"short_mscale", 1.25},
              {"long_mscale", 1.5},
              {"original_max_position_embeddings", 64}};
  for (const Json& above : {left_out, Json(64)}) {
    const Rope r = rope(phi, {{"original_max_position_embeddings", above}});
    CHECK(r.long_from == 64);
    CHECK(r.frequency[4] == doctest::Approx(0.05));
    CHECK(r.long_frequency[4] == doctest::Approx(0.025));
    CHECK(r.scale == 1.25);
    CHECK(r.long_scale == 1.5);
  }
  CHECK(rope(phi, {{"original_max_position_embeddings", 32}}).long_from == 64);  // here the one at the top level counts
  phi["short_factor"].push_back(1);
  CHECK(says(refused_family("phimoe", {{"rope_parameters", phi}}),
             {"field \"short_factor\": expected a list of 8 numbers"}));

  // As in Llama 3: wavelengths above 64 are stretched by 8, those below 16 not at all, those in between in part.
  Json llama = {{"rope_type", "llama3"},  {"rope_theta", 100.0},     {"factor", 8.0},
                {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  const Rope l = rope(llama);
  CHECK(l.frequency[0] == plain.frequency[0]);                                                      // 6.3 tokens
  CHECK(l.frequency[7] == plain.frequency[7] / 8);                                                  // 353 tokens
  const double turns = 64 * plain.frequency[2] / (2 * std::numbers::pi), smooth = (turns - 1) / 3;  // 19.9 tokens
  CHECK(l.frequency[2] == doctest::Approx(plain.frequency[2] * ((1 - smooth) / 8 + smooth)));
  llama["high_freq_factor"] = 1.0;
  CHECK(rope(llama).frequency[2] == plain.frequency[2]);
}

TEST_CASE("frequencies are PyTorch's to the last bit: far into a text one more would be another angle") {
  // 1 / (5e6 ** (arange(0, 24, 2).float() / 24)), by PyTorch 2.15
  const std::vector<double> torch = {0x1p+0,         0x1.1b2c64p-2,  0x1.393b2cp-4,  0x1.5a7abcp-6,
                                     0x1.7f41bep-8,  0x1.a7f02ap-10, 0x1.d4effep-12, 0x1.035b54p-13,
                                     0x1.1ee2e4p-15, 0x1.3d5696p-17, 0x1.5f05c6p-19, 0x1.844830p-21};
  CHECK(read("qwen3_moe", {{"head_dim", 24}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e6}}}})
            .rope.frequency == torch);
}

TEST_CASE("fields that makers' code and transformers read differently are refused") {
  CHECK(
      says(refused_family("deepseek_v2", {{"rope_interleave", false}}), {"field \"rope_interleave\": expected true"}));
  CHECK(read("deepseek_v3", {{"rope_interleave", false}}).rope.neighbours == false);
  CHECK(read("deepseek_v3", {{"rope_interleave", nullptr}}).rope.neighbours == false);
  CHECK(read("deepseek_v3", {{"rope_interleave", left_out}}).rope.neighbours);
  for (const char* family : {"deepseek_v2", "deepseek_v3", "glm4_moe", "dots1"}) {
    CHECK(says(refused_family(family, {{"moe_layer_freq", 2}}), {"field \"moe_layer_freq\": expected 1"}));
  }
  CHECK(read("deepseek_moe", {{"moe_layer_freq", 2}}).moe_layers == std::vector<std::uint32_t>{2});
}

TEST_CASE("what a GPU computes is said by name, and the rest refused with the part that it lacks") {
  const auto lacks = [](const std::string& family, const std::vector<std::pair<std::string, Json>>& fields = {}) {
    return beyond_cuda(read(family, fields), {});
  };
  for (const char* computed :
       {"mixtral",       "qwen2_moe",        "qwen3_moe",      "deepseek_moe",     "xverse_moe",
        "olmoe",         "phimoe",           "granitemoe",     "granitemoeshared", "dots1",
        "glm4_moe",      "ernie4_5_moe",     "hunyuan_v1_moe", "minimax_m2",       "gpt_oss",
        "deepseek_v2",   "deepseek_v2_lite", "deepseek_v3",    "flex_olmo",        "llama4",
        "glm4_moe_lite", "exaone_moe",       "hy_v3",          "solar_open",       "qwen3_vl_moe",
        "qwen3_next",    "qwen3_5_moe",      "afmoe",          "lfm2_moe",         "glm4v_moe",
        "gemma4",        "mistral4"}) {
    CAPTURE(computed);
    CHECK(lacks(computed).empty());
  }
  CHECK(lacks("hunyuan_layers") == "layers that differ in their experts");
  CHECK(lacks("granitemoehybrid") == "Mamba layers");
}

TEST_CASE("Mistral 4's queries grow with their position, as its rope says, or as its first models have it") {
  const auto config = [](const Json& rope) {
    Json c = config_with("mistral4", {});
    c["text_config"]["rope_parameters"] = rope;
    return parse_json(c.dump(), "config.json");
  };
  const auto read_rope = [&](const Json& rope) { return config_from(config(rope), "config.json"); };
  const ModelConfig first = read_rope(nullptr);
  CHECK(first.tuning.by == doctest::Approx(0.1));
  CHECK(first.rope.factor == 128);
  CHECK(first.tuning.at(8191) == 1);
  CHECK(first.tuning.at(8192) == doctest::Approx(1 + 0.1 * std::log(2)));
  CHECK(first.tuning.is_in(true));
  CHECK_FALSE(read("llama4").tuning.is_in(true));
  CHECK(read("llama4").tuning.is_in(false));
  CHECK(read("llama4", {{"floor_scale", 16}}).tuning.at(15) == doctest::Approx(1 + 0.1 * std::log(2)));
  Json rope = config_with("mistral4", {})["text_config"]["rope_parameters"];
  CHECK(read_rope(rope).tuning.floor == 16);
  const auto refused = [&](const char* field, const Json& value) {
    Json changed = rope;
    changed[field] = value;
    return refusal("config.json", [&] { static_cast<void>(read_rope(changed)); });
  };
  CHECK(says(refused("llama_4_scaling_beta", -0.1), {"llama_4_scaling_beta"}));
  CHECK(says(refused("original_max_position_embeddings", 0), {"original_max_position_embeddings"}));
  CHECK(says(refused("partial_rotary_factor", 0.25), {"qk_rope_head_dim"}));
  Json outside = config_with("mistral4", {});  // transformers takes the length at the top level
  outside["text_config"]["original_max_position_embeddings"] = 32;
  CHECK(config_from(parse_json(outside.dump(), "config.json"), "config.json").tuning.floor == 32);
  rope.erase("llama_4_scaling_beta");
  CHECK_FALSE(read_rope(rope).tuning.is_in(true));
  for (const Json& other : {Json("mistral"), Json("deepseek_v3"), Json()}) {
    Json c = config_with("mistral4", {});
    c["text_config"]["model_type"] = other;
    const Json as_read = parse_json(c.dump(), "config.json");
    CHECK(says(refusal("config.json", [&] { static_cast<void>(config_from(as_read, "config.json")); }),
               {"model_type", "mistral4"}));
  }
}

TEST_CASE("windows, chunks and kinds of layers") {
  CHECK(read("mixtral", {{"sliding_window", 7}}).layer[2].window == 7);
  const ModelConfig oss = read("gpt_oss", {{"layer_types", left_out}});
  CHECK(oss.layer[0].window == 16);
  CHECK(oss.layer[1].window == 0);
  const Json types = Json::array({"full_attention", "sliding_attention", "full_attention"});
  CHECK(read("dots1", {{"layer_types", types}, {"sliding_window", 5}}).layer[1].window == 5);
  CHECK(read("dots1", {{"layer_types", left_out}, {"max_window_layers", 2}}).layer[2].window == 4096);
  const ModelConfig llama =
      read("llama4", {{"layer_types", left_out}, {"no_rope_layers", Json::array()}, {"moe_layers", left_out}});
  CHECK(llama.moe_layers == std::vector<std::uint32_t>{1, 3});
  CHECK(llama.layer[2].chunk == 16);
  CHECK(llama.layer[3].chunk == 0);
  CHECK_FALSE(llama.layer[3].turns);
  CHECK(read("llama4", {{"attn_temperature_tuning", 4}}).tuning.by == doctest::Approx(0.1));
  CHECK(read("llama4", {{"attn_temperature_tuning", 0}}).tuning.by == 0);
  for (const Json& no_number : {Json(-1), Json(1e300), Json(0.5)}) {
    CHECK(
        says(refused_family("llama4", {{"attn_temperature_tuning", no_number}}), {"attn_temperature_tuning", "0 to"}));
  }
  const ModelConfig next = read("qwen3_next", {{"layer_types", left_out}, {"num_hidden_layers", 8}});
  CHECK(next.layer[2].linear);
  CHECK_FALSE(next.layer[3].linear);
  CHECK(read("qwen3_moe", {{"decoder_sparse_step", 2}}).moe_layers == std::vector<std::uint32_t>{1});
  CHECK(read("ernie4_5_moe", {{"moe_layer_end_index", -1}}).moe_layers == std::vector<std::uint32_t>{1, 2});
  CHECK(says(refused_family("deepseek_v3", {{"first_k_dense_replace", 3}}), {"one layer with experts at least"}));

  const ModelConfig exaone = read("exaone_moe", {{"layer_types", left_out}, {"sliding_window_pattern", 3}});
  CHECK(exaone.layer[1].window == 16);
  CHECK(exaone.layer[1].turns);
  CHECK(exaone.layer[2].window == 0);
  CHECK_FALSE(exaone.layer[2].turns);
  const ModelConfig none = read("exaone_moe", {{"layer_types", left_out}, {"sliding_window", nullptr}});
  CHECK(none.layer[0].window == 0);
  CHECK(none.layer[0].turns);
  CHECK(read("exaone_moe", {{"sliding_window_pattern", "LLG"}}).layer[2].window == 16);  // its layer_types say it
  CHECK(says(refused_family("exaone_moe", {{"layer_types", left_out}, {"sliding_window_pattern", "LLG"}}),
             {"field \"sliding_window_pattern\": expected a whole number"}));
}

TEST_CASE("heads of an odd size are refused by the field that makes them so") {
  CHECK(says(refused_family("olmoe", {{"hidden_size", 60}, {"num_attention_heads", 4}, {"num_key_value_heads", 4}}),
             {"field \"hidden_size\": expected an even number for each of 4 heads, got 60"}));
}

TEST_CASE("heads of latent attention need not divide the hidden size") {
  const ModelConfig c = read("glm4_moe_lite", {{"hidden_size", 50}});
  CHECK(c.head_dim == 16);
  CHECK(c.value_dim == 12);
  CHECK(read("hunyuan_v1_moe", {{"kv_lora_rank", 512}}).head_dim == 16);  // other families ignore that field
}

TEST_CASE("Hunyuan 3 without shared experts has a shared part as wide as a dense layer") {
  CHECK(read("hy_v3").shared_width == 16);
  CHECK(read("hy_v3", {{"num_shared_experts", 0}}).shared_width == 32);
}

TEST_CASE("LFM2") {
  const ModelConfig lfm =
      read("lfm2_moe", {{"routed_scaling_factor", 1.5}, {"norm_eps", 1e-3}, {"rms_norm_eps", 1e-6}});
  CHECK(lfm.routed_scale == 1.5);
  CHECK(lfm.norm_epsilon == 1e-3);
  CHECK(lfm.layer[0].linear);
  CHECK_FALSE(lfm.layer[1].linear);
  CHECK_FALSE(read("lfm2_moe", {{"tie_embedding", false}}).tied_embeddings);
  CHECK(read("lfm2_moe", {{"use_expert_bias", false}}).names.choice_bias.empty());
  CHECK(says(refused_family("lfm2_moe", {{"layer_types", left_out}}), {"field \"layer_types\": expected a list of"}));
  CHECK(says(refused_family("lfm2_moe", {{"conv_bias", true}}), {"field \"conv_bias\""}));
  CHECK(says(refused_family("lfm2_moe", {{"conv_L_cache", 0}}), {"field \"conv_L_cache\""}));
}

TEST_CASE("Mamba's layers: what files say, what they leave out, and what is refused") {
  const ModelConfig c = read("granitemoehybrid");
  CHECK(c.linear.rule == LinearRule::mamba);
  CHECK(c.linear.channels() == 2 * 48 + 2 * 16);
  CHECK((c.linear.kernel_bias && !c.linear.bias));
  CHECK((c.layer[0].linear && !c.layer[1].linear && !c.layer[1].turns));
  // As on the hub.
  const Json types = {"mamba", "attention", "mamba", "mamba"};
  const ModelConfig hub = read("granitemoehybrid", {{"layer_types", types},
                                                    {"time_step_limit", left_out},
                                                    {"mamba_d_head", "auto"},
                                                    {"init_method", "mup"},
                                                    {"normalization_function", "rmsnorm"}});
  CHECK(hub.unknown.empty());
  CHECK((hub.layer[0].linear && !hub.layer[1].linear));
  // As in transformers 5.23: GraniteMoeHybridConfig.
  const ModelConfig bare = read("granitemoehybrid", {{"mamba_n_groups", left_out},
                                                     {"mamba_n_heads", left_out},
                                                     {"mamba_d_head", left_out},
                                                     {"mamba_d_state", left_out},
                                                     {"mamba_d_conv", left_out},
                                                     {"mamba_expand", left_out},
                                                     {"mamba_conv_bias", left_out},
                                                     {"mamba_proj_bias", left_out},
                                                     {"position_embedding_type", left_out},
                                                     {"shared_intermediate_size", left_out},
                                                     {"hidden_size", 128},
                                                     {"layer_types", left_out}});
  CHECK((bare.linear.key_heads == 1 && bare.linear.value_heads == 128 && bare.linear.value_dim == 2));
  CHECK((bare.linear.key_dim == 256 && bare.linear.kernel == 4 && bare.linear.kernel_bias && !bare.linear.bias));
  CHECK((bare.layer[1].linear && !bare.layer[1].turns && bare.shared_width == 1024));
  for (const auto& [field, value] : std::vector<std::pair<const char*, Json>>{{"mamba_n_heads", 7},
                                                                              {"mamba_n_groups", 3},
                                                                              {"mamba_d_head", 24},
                                                                              {"mamba_expand", 0},
                                                                              {"mamba_d_state", 0},
                                                                              {"mamba_d_conv", 65},
                                                                              {"time_step_limit", {0.0, 0.1}},
                                                                              {"position_embedding_type", "alibi"},
                                                                              {"normalization_function", "layernorm"},
                                                                              {"num_local_experts", 0}}) {
    const std::string wrong = field, named = wrong.starts_with("mamba_n_") ? "mamba_" : wrong;
    CAPTURE(wrong);
    CHECK(says(refused_family("granitemoehybrid", {{field, value}}), {"field \"" + named}));
  }
}

TEST_CASE("Gemma 4") {
  // Every other of the four layers has a window, with its own heads and positions.
  const ModelConfig c = read("gemma4");
  CHECK(c.layer[1].head_dim == 32);
  CHECK(c.layer[1].kv_heads == 1);
  CHECK(c.layer[1].keys_are_values);
  CHECK(c.layer[2].head_dim == 16);
  CHECK(c.layer[2].kv_heads == 2);
  CHECK_FALSE(c.layer[2].keys_are_values);
  CHECK(c.head_dim == 16);
  CHECK(c.rope_of(c.layer[0]).theta == 10000);
  CHECK(c.rope_of(c.layer[1]).theta == 1e6);
  CHECK(c.rope.width == 32);
  CHECK(std::count(c.rope.frequency.begin(), c.rope.frequency.end(), 0.0) == 12);  // of 16: a quarter turns
  // In the form of files on the hub, and with nothing said.
  const auto older = [](const std::vector<std::pair<std::string, Json>>& more) {
    std::vector<std::pair<std::string, Json>> fields = {{"per_layer_config", left_out}};
    fields.insert(fields.end(), more.begin(), more.end());
    return read("gemma4", fields);
  };
  CHECK(older({{"global_head_dim", 24}, {"num_global_key_value_heads", 4}}).layer[3].head_dim == 24);
  CHECK(older({{"global_head_dim", 24}, {"num_global_key_value_heads", 4}}).layer[3].kv_heads == 4);
  CHECK(older({}).layer[3].head_dim == 512);
  CHECK(older({}).layer[3].kv_heads == 2);
  CHECK(older({{"num_global_key_value_heads", 4}, {"attention_k_eq_v", false}}).layer[3].kv_heads == 2);
  CHECK(older({{"layer_types", left_out}}).layer[2].window == 16);
  CHECK(older({{"layer_types", left_out}}).layer[3].window == 0);  // the last has none
  CHECK(older({{"rope_parameters", left_out}}).rope.frequency[64] == 0);
  for (const auto& [field, value] :
       {std::pair{"enable_moe_block", Json(false)}, std::pair{"hidden_size_per_layer_input", Json(256)},
        std::pair{"num_kv_shared_layers", Json(2)}, std::pair{"use_bidirectional_attention", Json("all")},
        std::pair{"hidden_activation", Json("gelu")}, std::pair{"top_k_experts", Json(9)},
        std::pair{"per_layer_config", Json({{"1", {{"head_dim", 24}}}})},
        std::pair{"per_layer_config",
                  Json({{"1", {{"num_key_value_heads", 3}}}, {"3", {{"num_key_value_heads", 3}}}})}}) {
    CHECK(says(refused_family("gemma4", {{field, value}}), {std::string("field \"") + field}));
  }
  CHECK(says(refused_family("gemma4", {{"hidden_size_per_layer_input", left_out}}), {"hidden_size_per_layer_input"}));
  CHECK(says(refused_family("gemma4", {{"per_layer_config", {{"4", {{"head_dim", 24}}}}}}),
             {"layers 0 to 3 and no \"4\""}));
  CHECK(says(refused_family("gemma4", {{"per_layer_config", {{"1", {{"sliding_window", 24}}}}}}),
             {"per_layer_config: 1: field \"sliding_window\": expected none"}));
  CHECK(says(refused_family("gemma4", {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
             {"rope_parameters: full_attention: field \"rope_theta\" is missing"}));
  CHECK(read("gemma4", {{"head_dim", left_out}, {"per_layer_config", left_out}}).layer[0].head_dim == 256);
  CHECK(read("gemma4", {{"per_layer_config", nullptr}}).layer[1].head_dim == 16);  // all layers alike
  CHECK(says(refused_family("gemma4", {{"global_head_dim", nullptr}}), {"field \"global_head_dim\""}));
  const Json nothing = {{"full_attention", {{"rope_theta", nullptr}}}};
  CHECK(says(refused_family("gemma4", {{"rope_parameters", nothing}}),
             {"full_attention: field \"rope_theta\": expected a number above 0, got null"}));
  CHECK(says(refused_family("dots1", {{"rope_parameters", {{"rope_theta", nullptr}}}}),
             {"field \"rope_theta\": expected a number above 0, got null"}));
  const Json no_logarithm = {{"rope_type", "yarn"}, {"rope_theta", 1.0}, {"factor", 4.0}};
  CHECK(says(refused_family("dots1", {{"rope_parameters", no_logarithm}}),
             {"field \"rope_theta\": expected another number, \"yarn\" divides by its logarithm"}));
  Json yarn = {{"rope_type", "yarn"},
               {"rope_theta", 1000.0},
               {"factor", 40.0},
               {"original_max_position_embeddings", 256U},
               {"truncate", false}};
  CHECK(says(refused_family("gemma4", {{"rope_parameters", {{"full_attention", yarn}}}}),
             {"full_attention: field \"truncate\": expected true, transformers does not read it"}));
  CHECK(says(refused_family("gemma4", {{"rope_parameters", {{"full_attention", {{"rope_theta", 1000.0}}}}}}),
             {"rope_parameters: field \"sliding_attention\" is missing"}));
  // Layers without a window may be stretched, and so may the top level: neither applies to the windows.
  yarn.erase("truncate");
  const auto windows = [&](const Json& rope, const std::vector<std::pair<std::string, Json>>& more = {}) {
    std::vector<std::pair<std::string, Json>> fields = {
        {"max_position_embeddings", 512U},
        {"rope_parameters", {{"full_attention", yarn}, {"sliding_attention", rope}}}};
    fields.insert(fields.end(), more.begin(), more.end());
    return read("gemma4", fields);
  };
  const Json by_context = {
      {"rope_type", "yarn"}, {"rope_theta", 1000.0}, {"factor", nullptr}, {"original_max_position_embeddings", 64U}};
  CHECK(windows(by_context).context == 10240);
  CHECK(windows(by_context).window_rope->factor == 8);
  CHECK(windows(by_context, {{"original_max_position_embeddings", 8U}}).window_rope->factor == 8);
  CHECK(windows(by_context, {{"original_max_position_embeddings", 8U}}).rope.frequency ==
        windows(by_context).rope.frequency);
  CHECK(windows({{"rope_type", "dynamic"}, {"rope_theta", 1000.0}, {"factor", 4.0}}).context == 512);
  Json unsaid = yarn;
  unsaid.erase("original_max_position_embeddings");
  CHECK(says(refused_family("gemma4", {{"rope_parameters", {{"full_attention", unsaid}}}}),
             {"full_attention: field \"original_max_position_embeddings\" is missing"}));
}

TEST_CASE("Trinity") {
  const ModelConfig c = read("afmoe", {{"layer_types", left_out}, {"global_attn_every_n_layers", 2}});
  CHECK(c.layer[0].window == 16);
  CHECK_FALSE(c.layer[1].turns);
  CHECK(c.embedding_scale == std::sqrt(static_cast<double>(c.hidden)));
  CHECK(read("afmoe", {{"mup_enabled", left_out}}).embedding_scale == 1);
  CHECK(read("afmoe", {{"num_dense_layers", left_out}}).moe_layers == std::vector<std::uint32_t>{1, 2});
  for (const auto& [field, value] : {std::pair{"score_func", Json("softmax")}, std::pair{"route_norm", Json(false)},
                                     std::pair{"n_group", Json(2)}, std::pair{"global_attn_every_n_layers", Json(0)}}) {
    CHECK(says(refused_family("afmoe", {{field, value}}), {std::string("field \"") + field}));
  }
}

TEST_CASE("layers without experts, where each has a type") {
  const auto dense = [](const char* family, const Json& types, const Json& first) {
    return read(family, {{"mlp_layer_types", types}, {"first_k_dense_replace", first}}).moe_layers;
  };
  using Layers = std::vector<std::uint32_t>;
  for (const char* family : {"exaone_moe", "hy_v3"}) {
    CAPTURE(family);
    CHECK(dense(family, {"sparse", "dense", "sparse"}, left_out) == Layers{0, 2});
    CHECK(dense(family, {"sparse", "dense", "sparse"}, 1) == Layers{0, 2});  // as transformers writes it
    CHECK(dense(family, left_out, 2) == Layers{2});
    CHECK(dense(family, left_out, left_out) == Layers{1, 2});
    for (const Json& wrong : {Json("dense"), Json{"dense", "sparse"}, Json{"dense", "sparse", "moe"}}) {
      CHECK(says(refused_family(family, {{"mlp_layer_types", wrong}}),
                 {"field \"mlp_layer_types\": expected a list of 3 times \"dense\" or \"sparse\""}));
    }
  }
  for (const char* name : {"route_norm", "moe_router_use_sigmoid", "qk_norm"}) {
    CHECK(says(refused_family("hy_v3", {{name, false}}), {std::string("field \"") + name + "\": expected true"}));
  }
  CHECK(says(refused_family("exaone_moe", {{"layer_types", left_out}, {"sliding_window_pattern", nullptr}}),
             {"field \"sliding_window_pattern\": expected a whole number"}));
  CHECK(says(refused_family("solar_open", {{"first_k_dense_replace", 1}}), {"expected 0"}));
}

TEST_CASE("what config.json leaves out is what transformers takes, and null may be something else") {
  // gpt-oss gets the rope of its first models. transformers 4 and 5 differ in what a null means.
  const Json first = {{"rope_type", "yarn"}, {"rope_theta", 150000.0}, {"factor", 32.0},
                      {"truncate", false},   {"beta_fast", 32.0},      {"original_max_position_embeddings", 4096}};
  const ModelConfig oss = read("gpt_oss", {{"rope_parameters", left_out}});
  CHECK(oss.rope.frequency == read("gpt_oss", {{"rope_parameters", first}}).rope.frequency);
  CHECK(oss.rope.scale == doctest::Approx(0.1 * std::log(32.0) + 1));
  Json rope = first;  // for YaRN null means no, and absence means yes
  rope["truncate"] = nullptr;
  CHECK(read("gpt_oss", {{"rope_parameters", rope}}).rope.frequency == oss.rope.frequency);
  rope.erase("truncate");
  CHECK(read("gpt_oss", {{"rope_parameters", rope}}).rope.frequency != oss.rope.frequency);
  CHECK(read("gpt_oss", {{"rope_parameters", left_out}, {"rope_scaling", Json::object()}}).rope.frequency ==
        oss.rope.frequency);
  CHECK(says(refused_family("gpt_oss", {{"rope_parameters", left_out}, {"rope_scaling", nullptr}}),
             {"field \"rope_scaling\": expected a kind of rotary embedding", "got null"}));
  CHECK(read("minimax_m2", {{"rope_parameters", left_out}}).rope.theta == 5e6);

  std::vector<std::pair<std::string, Json>> deepseek = {{"n_routed_experts", 16}, {"num_hidden_layers", 5}};
  for (const char* name :
       {"n_group", "topk_group", "routed_scaling_factor", "norm_topk_prob", "first_k_dense_replace"}) {
    deepseek.emplace_back(name, left_out);
  }
  const ModelConfig v3 = read("deepseek_v3", deepseek);
  CHECK(v3.gate.groups == 8);
  CHECK(v3.gate.kept_groups == 4);
  CHECK(v3.routed_scale == 2.5);
  CHECK(v3.renormalise);
  CHECK(v3.added_to_sum == 1e-20);
  CHECK(read("minimax_m2", {}).added_to_sum == 0);
  CHECK(read("ernie4_5_moe", {{"moe_norm_min", left_out}}).least_sum == 1e-12);
  CHECK(read("ernie4_5_moe", {{"moe_norm_min", 0.5}}).least_sum == 0.5);
  CHECK(read("ernie4_5_moe", {{"moe_norm_min", 0.0}}).least_sum == 0);
  CHECK(says(refused_family("ernie4_5_moe", {{"moe_norm_min", -1}}),
             {"field \"moe_norm_min\": expected a number above 0"}));
  CHECK(v3.moe_layers == std::vector<std::uint32_t>{3, 4});
  CHECK_FALSE(read("deepseek_v3", {{"norm_topk_prob", nullptr}}).renormalise);
  CHECK_FALSE(read("dots1", {{"norm_topk_prob", left_out}}).renormalise);
  CHECK(read("deepseek_moe", {{"norm_topk_prob", true}}).renormalise);
  CHECK_FALSE(read("deepseek_moe", {{"norm_topk_prob", true}, {"num_experts_per_tok", 1}}).renormalise);
  CHECK(read("deepseek_v3", {{"n_group", nullptr}, {"topk_group", nullptr}}).gate.groups == 1);
  CHECK(says(refused_family("deepseek_v3", {{"topk_group", nullptr}}), {"field \"topk_group\": expected 1 to 4"}));
  for (const char* name : {"n_group", "topk_group"}) {
    CHECK(says(refused_family("deepseek_v2", {{name, left_out}}), {std::string("field \"") + name, "got nothing"}));
  }
  CHECK(read("deepseek_v2", {{"n_shared_experts", left_out}}).shared_width == 64);
  CHECK(read("deepseek_v2", {{"n_shared_experts", nullptr}}).shared_width == 0);
  CHECK(read("ernie4_5_moe", {{"moe_num_shared_experts", left_out}}).shared_width == 64);

  const auto window = [](const char* family, std::vector<std::pair<std::string, Json>> fields, const Json& tokens) {
    fields.emplace_back("layer_types", left_out);
    fields.emplace_back("sliding_window", tokens);
    return read(family, fields).layer[2].window;
  };
  CHECK(window("dots1", {{"max_window_layers", 1}}, left_out) == 4096);
  CHECK(window("dots1", {{"max_window_layers", 1}}, nullptr) == 0);
  CHECK(window("qwen2_moe", {{"use_sliding_window", true}}, left_out) == 4096);
  CHECK(window("qwen3_moe", {{"use_sliding_window", true}}, left_out) == 4096);
  CHECK(window("qwen3_moe", {{"use_sliding_window", true}}, nullptr) == 0);
  CHECK(window("qwen3_moe", {{"use_sliding_window", false}}, 7) == 0);
  CHECK(window("gpt_oss", {}, left_out) == 128);
  CHECK(window("mixtral", {}, left_out) == 0);
  CHECK(read("llama4", {{"attention_chunk_size", left_out}}).layer[2].chunk == 8192);
  CHECK(read("llama4", {{"attention_chunk_size", nullptr}}).layer[2].chunk == 0);
  CHECK(read("phimoe", {{"router_jitter_noise", 0.0}}).gate.mixer_epsilon == 0);
  CHECK(read("phimoe", {{"router_jitter_noise", left_out}}).gate.mixer_epsilon == 0.01F);
}

TEST_CASE("a model that also sees: what is said of texts is what is read") {
  Json text = config_with("llama4", {{"architectures", left_out}});
  const Json whole = {
      {"architectures", {"Llama4ForConditionalGeneration"}}, {"text_config", text}, {"vision_config", Json::object()}};
  const ModelConfig c = config_from(parse_json(whole.dump(), ""), "config.json");
  CHECK(c.layers == 4);
  CHECK(c.gate_name(0) == "language_model.model.layers.1.feed_forward.router.weight");
  text["hidden_size"] = "64";
  CHECK(says(refusal("config.json",
                     [&] {
                       Json bad = whole;
                       bad["text_config"] = text;
                       static_cast<void>(config_from(parse_json(bad.dump(), ""), "config.json"));
                     }),
             {"config.json: text_config: field \"hidden_size\""}));
}

TEST_CASE("groups of experts have to be able to give a row its experts") {
  CHECK(says(refused_family("deepseek_v3", {{"n_group", 3}}), {"field \"n_group\": expected a divisor of 8 experts"}));
  CHECK(says(refused_family("deepseek_v3", {{"n_group", 8}}), {"with groups of 2 at least"}));
  CHECK(says(refused_family("deepseek_v3", {{"topk_group", 1}}),
             {"field \"topk_group\": expected 1 to 4, and enough for 3 experts"}));
  CHECK(says(refused_family("deepseek_v3", {{"scoring_func", "softmax"}}),
             {"field \"scoring_func\": expected \"sigmoid\""}));
  CHECK(says(refused_family("deepseek_v2", {{"topk_method", "noaux_tc"}}), {"field \"topk_method\""}));
  CHECK(says(refused_family("phimoe", {{"num_experts_per_tok", 3}}), {"field \"num_experts_per_tok\": expected 2"}));
  CHECK(says(refused_family("qwen3_moe", {{"num_experts", 16}}),
             {"field \"num_local_experts\": expected 16 as \"num_experts\" says"}));
}

TEST_CASE("fields that nobody knows and tensors that nobody reads are named") {
  CHECK(read("mixtral", {{"my_field", 1}, {"other", nullptr}}).unknown == std::vector<std::string>{"my_field"});
  CHECK(says(refused_family("deepseek_v2", {{"mlp_bias", true}}), {"field \"mlp_bias\": expected false"}));
  CHECK(says(refused_family("ernie4_5_moe", {{"use_bias", true}}), {"field \"use_bias\": expected false"}));
  CHECK(says(refused_family("olmoe", {{"mlp_bias", true}}), {"field \"mlp_bias\": expected false"}));

  TinyCheckpoint c;
  const TemporaryFolder folder;
  const auto add = [&](const std::string& name) {
    c.values[name] = {1, 2};
    c.shapes[name] = {2};
  };
  add("model.layers.2.enorm.weight");  // of what predicts a second token
  add("vision_tower.patch.weight");
  add("model.mtp_block.0.input_layernorm.weight");  // ERNIE's, for the same purpose
  c.config["unheard_of"] = true;
  c.write(folder.path());
  // Of what changes texts only what is asked for is named.
  write_file(
      folder.path() / "generation_config.json",
      R"({"no_repeat_ngram_size":3,"typical_p":1.0,"min_length":0,"suppress_tokens":null,"num_beams":1,"top_k":50})");
  const CpuModel model(folder.path());
  REQUIRE(model.notes().size() == 3);
  CHECK(
      says(model.notes()[0], {"3 tensors are not used, from \"model.layers.2.enorm.weight\" to \"vision_tower.patch"}));
  CHECK(says(model.notes()[1], {"field \"unheard_of\" is not read here"}));
  CHECK(model.notes()[2] ==
        "generation_config.json: field \"no_repeat_ngram_size\" is not computed here, and was not used");
  for (const std::string name : {"model.layers.1.self_attn.q_norm.weight", "model.extra.weight", "lm_head.bias",
                                 "model.layers.0.block_sparse_moe.experts.4.w1.weight"}) {
    TinyCheckpoint more;
    more.values[name] = {1, 2};
    more.shapes[name] = {2};
    more.write(folder.path());
    CHECK(says(refusal("model.safetensors", [&] { CpuModel refusing(folder.path()); }),
               {"tensor \"" + name + "\" is there, expected none"}));
  }
}
