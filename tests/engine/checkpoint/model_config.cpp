// What config.json may say since transformers 5, and what it may not.
#include "checkpoint/model_config.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>

#include "checkpoint/generation_config.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "engine/fixtures/tiny_logits.hpp"
#include "engine/fixtures/tiny_qwen.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

ModelConfig read(const Json& config) {
  const TemporaryFolder folder;
  write_file(folder.path() / "config.json", config.dump());
  return read_model_config(folder.path());
}

/// The tiny Mixtral's config with fields set, or removed by a discarded value.
Json changed(const std::vector<std::pair<std::string, Json>>& fields) {
  Json config = TinyCheckpoint().config;
  for (const auto& [name, value] : fields) {
    config[name] = value;
    if (value.is_discarded()) config.erase(name);
  }
  return config;
}
const Json absent = Json(Json::value_t::discarded);

std::string refused(const std::vector<std::pair<std::string, Json>>& fields) {
  return refusal("config.json", [&] { static_cast<void>(read(changed(fields))); });
}

double theta(const Json& top, const Json& parameters) {
  return read(changed({{"rope_theta", top}, {"rope_parameters", parameters}})).rope.theta;
}

std::string refused_theta(const Json& top, const Json& parameters) {
  return refused({{"rope_theta", top}, {"rope_parameters", parameters}});
}

}  // namespace

TEST_CASE("rope_theta is read from rope_parameters, from the top level, or from both where they agree") {
  const Json inside = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  CHECK(theta(absent, inside) == 500);
  CHECK(theta(nullptr, inside) == 500);
  CHECK(theta(500, inside) == 500);
  CHECK(theta(700, nullptr) == 700);
  CHECK(theta(700, absent) == 700);
  CHECK(theta(700, Json::object()) == 700);
  CHECK(theta(700, {{"rope_type", "default"}}) == 700);
  CHECK(theta(absent, {{"type", "default"}, {"rope_theta", 500}, {"factor", nullptr}}) == 500);
  CHECK(theta(absent, {{"rope_theta", 500}}) == 500);

  TinyCheckpoint old, other, between;
  other.config.erase("rope_theta");
  between.config.erase("rope_theta");
  other.config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", old.config["rope_theta"]}};
  between.config["rope_parameters"] = inside;
  CHECK(tiny_logits(other) == tiny_logits(old));
  CHECK(tiny_logits(between) != tiny_logits(old));
}

TEST_CASE("rope_parameters that the engine does not compute are named") {
  CHECK(says(refused_theta(700, {{"rope_type", "default"}, {"rope_theta", 500}}),
             {"field \"rope_theta\": expected 500 as in rope_parameters, or none here, got 700"}));
  CHECK(says(refused_theta(absent, {{"rope_type", "axial"}, {"rope_theta", 500}}),
             {"rope_parameters: field \"rope_type\": expected \"default\", \"linear\", \"dynamic\", \"yarn\", "
              "\"longrope\" or \"llama3\", got \"axial\""}));
  CHECK(says(refused_theta(absent, {{"rope_type", "yarn"}, {"rope_theta", 500}, {"factor", 4.0}, {"alpha", 2.0}}),
             {"rope_parameters: field \"alpha\": expected none, it means nothing to the type \"yarn\", got 2.0"}));
  CHECK(says(refused_theta(700, {{"type", "linear"}}), {"rope_parameters: field \"factor\" is missing"}));
  CHECK(says(refused_theta(absent, {{"rope_type", 1}}), {"field \"rope_type\": expected \"default\"", "got 1"}));
  CHECK(says(refused_theta(absent, {{"rope_type", "default"}, {"rope_theta", 500}, {"factor", 4.0}}),
             {"rope_parameters: field \"factor\": expected none, it means nothing to the type \"default\", got 4.0"}));
  CHECK(says(refused_theta(700, {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 500}}}}),
             {"rope_parameters: field \"full_attention\": expected none, it means nothing to the type"}));
  CHECK(says(refused_theta(absent, {{"rope_type", "default"}}), {"rope_parameters: field \"rope_theta\" is missing"}));
  CHECK(says(refused_theta(absent, {{"rope_type", "default"}, {"rope_theta", -1}}),
             {"rope_parameters: field \"rope_theta\": expected a number above 0"}));
  CHECK(says(refused_theta(absent, "default"), {"rope_parameters: expected a JSON object"}));
  CHECK(says(refused_theta(absent, absent), {"config.json: field \"rope_theta\" is missing"}));
}

TEST_CASE("what is said of texts apart is read by models that also see, and beside it nothing is") {
  std::ifstream file(golden_file("zoo") / "qwen3_vl_moe" / "config.json");
  Json seeing = Json::parse(file);
  REQUIRE(seeing.contains("text_config"));
  CHECK(read(seeing).unknown.empty());
  const std::uint32_t top_k = read(seeing).top_k;
  seeing["num_experts_per_tok"] = top_k + 1;  // transformers does not read it there
  seeing["vision_start_token_id"] = 7;
  seeing["hidden_size"] = seeing["text_config"]["hidden_size"];
  CHECK(read(seeing).top_k == top_k);
  CHECK(read(seeing).unknown == std::vector<std::string>{"num_experts_per_tok (beside text_config)"});
  seeing["eos_token_id"] = {1, 5};  // where folders have them
  CHECK(read(seeing).ends(5));
  const Json text = TinyCheckpoint().config;
  CHECK(says(refused({{"text_config", text}}), {"\"text_config\"", "expected none"}));
}

TEST_CASE("of a generation config that does not sample, what is taken from repetition counts") {
  const TemporaryFolder folder;
  write_file(folder.path() / "config.json", TinyCheckpoint().config.dump());
  const auto made = [&](const std::string& text) {
    write_file(folder.path() / "generation_config.json", text);
    return read_generation_config(folder.path());
  };
  const GenerationConfig likeliest = made(R"({"repetition_penalty":1.5,"temperature":0.5,"top_k":-1})");
  CHECK(likeliest.repeat_penalty == 1.5);
  CHECK_FALSE(likeliest.temperature);
  CHECK_FALSE(likeliest.top_k);
  CHECK(made(R"({"repetition_penalty":1.5,"do_sample":true})").temperature == 1);
}

TEST_CASE("JSON ends where its file does") {
  const TemporaryFolder folder;
  for (const char* more : {"", "{\"num_experts_per_tok\": 1}"}) {
    const std::string text = TinyCheckpoint().config.dump();
    write_file(folder.path() / "config.json", text + '\0' + more);
    CHECK(says(refusal("config.json", [&] { static_cast<void>(read_model_config(folder.path())); }),
               {fmt::format("a NUL byte at {}", text.size())}));
  }
}

TEST_CASE("layer_types: full attention in every layer, or a refusal that names the layer") {
  const std::string full = "full_attention", sliding = "sliding_attention";
  CHECK(refused({{"layer_types", {full, full}}}).empty());
  CHECK(refused({{"layer_types", nullptr}}).empty());
  CHECK(says(refused({{"layer_types", {full, sliding}}}),
             {"field \"layer_types\": expected a sliding_window of 1 token at least, since layer 1 has sliding "
              "attention, got [\"full_attention\",\"sliding_attention\"]"}));
  CHECK(says(refused({{"layer_types", {full, 7}}}), {"where layer 1 has 7, which is not supported"}));
  for (const Json& other : {Json::array({full}), Json::array({full, full, full}), Json::array(), Json(full)}) {
    CHECK(says(refused({{"layer_types", other}}),
               {"field \"layer_types\": expected a list of 2 types of attention, one for each layer, got "}));
  }
  Json qwen = tiny_qwen().config;
  qwen.update({{"layer_types", {full, full}}, {"use_sliding_window", false}, {"sliding_window", 4096}});
  CHECK(read(qwen).layers == 2);
  qwen["layer_types"][0] = sliding;
  CHECK(says(refusal("config.json", [&] { static_cast<void>(read(qwen)); }), {"since layer 0 has sliding attention"}));
  qwen["use_sliding_window"] = true;
  CHECK(read(qwen).layer[0].window == 4096);
  CHECK(read(qwen).layer[1].window == 0);
}

TEST_CASE("begin and end tokens may come as transformers writes them") {
  CHECK(read(changed({{"eos_token_id", 200}})).end_tokens == std::vector<std::uint32_t>{200});
  CHECK(read(changed({{"eos_token_id", Json::array({200})}})).end_tokens == std::vector<std::uint32_t>{200});
  CHECK(read(changed({{"eos_token_id", Json::array({200, 201})}})).ends(200));
  CHECK(read(changed({{"eos_token_id", Json::array({200, 201})}})).ends(201));
  CHECK_FALSE(read(changed({{"eos_token_id", Json::array({200, 201})}})).ends(202));
  CHECK(read(changed({{"eos_token_id", nullptr}})).end_tokens.empty());
  for (const Json& other : {Json::array({Json::array({200})}), Json(-1), Json("200"), Json(no_token)}) {
    CHECK(says(refused({{"eos_token_id", other}}),
               {"field \"eos_token_id\": expected whole numbers, one by itself or some "
                "in a list, or null, got "}));
  }
  // Small models may have their family's default, which is that of a larger vocabulary.
  CHECK(read(changed({{"eos_token_id", Json::array({258, 7})}})).end_tokens == std::vector<std::uint32_t>{7});
  const ModelConfig small = read(changed({{"bos_token_id", 50279}}));
  CHECK(small.begin_token == no_token);
  CHECK(small.unknown == std::vector<std::string>{"bos_token_id"});
  CHECK(read(changed({{"bos_token_id", nullptr}})).begin_token == no_token);
  CHECK(read(changed({{"bos_token_id", absent}})).begin_token == no_token);
  CHECK(says(refused({{"bos_token_id", Json::array({256})}}), {"field \"bos_token_id\": expected a whole number"}));
}
