// Weights that contradict config.json are refused; weights that it does not ask for are not needed.
#include "checkpoint/agreement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "checkpoint/model_config.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "engine/fixtures/tiny_logits.hpp"
#include "engine/fixtures/tiny_qwen.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

std::string refused_folder(const std::filesystem::path& folder) {
  return refusal("ferry-test-", [&] { CpuModel model(folder); });
}

std::string refused(const TinyCheckpoint& c) {
  const TemporaryFolder folder;
  c.write(folder.path());
  return refused_folder(folder.path());
}

/// A checkpoint whose embeddings also make the logits, and whose lm_head.weight repeats them.
TinyCheckpoint tied() {
  TinyCheckpoint c;
  c.config["tie_word_embeddings"] = true;
  c.values["lm_head.weight"] = c.values["model.embed_tokens.weight"];
  return c;
}

void remove_biases(TinyCheckpoint& c) {
  std::erase_if(c.values, [](const auto& item) { return item.first.ends_with("_proj.bias"); });
}

}  // namespace

TEST_CASE("tied embeddings: lm_head.weight may be missing or repeat them") {
  const std::vector<float> logits = tiny_logits(tied());
  TinyCheckpoint untied = tied();
  untied.config["tie_word_embeddings"] = false;
  CHECK(tiny_logits(untied) == logits);
  TinyCheckpoint without = tied();
  without.values.erase("lm_head.weight");
  CHECK(tiny_logits(without) == logits);
}

TEST_CASE("tied embeddings: an lm_head.weight that differs is refused") {
  TinyCheckpoint other = tied();
  other.values["lm_head.weight"] = TinyCheckpoint().values["lm_head.weight"];
  CHECK(says(refused(other), {"model.safetensors: tensor \"lm_head.weight\" is ", " at [0, 0] where ",
                              "\"model.embed_tokens.weight\" is ", "expected no difference",
                              "\"tie_word_embeddings\": true", "set it to false", "remove lm_head.weight"}));
  other.config["tie_word_embeddings"] = false;
  CHECK(refused(other).empty());

  TinyCheckpoint last = tied();
  last.values["model.embed_tokens.weight"].back() = 0.25F;
  last.values["lm_head.weight"].back() = 0.5F;
  CHECK(says(refused(last), {"\"lm_head.weight\" is 0.5 at [257, 7] where \"model.embed_tokens.weight\" is 0.25,"}));

  TinyCheckpoint shape = tied();
  shape.shapes["lm_head.weight"] = {8, 258};
  CHECK(says(refused(shape), {"\"lm_head.weight\" has shape [8, 258], expected [258, 8]"}));
}

TEST_CASE("tied embeddings of models that also see: each family has its own place for them") {
  const auto tied = [](const char* family, const Json& root, const Json& text) {
    std::ifstream file(golden_file("zoo") / family / "config.json");
    Json config = Json::parse(file);
    for (auto& [where, said] : {std::pair(&config, &root), std::pair(&config["text_config"], &text)}) {
      where->erase("tie_word_embeddings");
      if (!said->is_null()) (*where)["tie_word_embeddings"] = *said;
    }
    return config_from(config, "config.json").tied_embeddings;
  };
  CHECK_FALSE(tied("qwen3_vl_moe", {}, true));  // the text's part alone says nothing
  CHECK(tied("qwen3_vl_moe", true, false));
  CHECK(tied("glm4v_moe", false, true));
  CHECK(tied("glm4v_moe", true, false));
  CHECK_FALSE(tied("glm4v_moe", {}, {}));
}

TEST_CASE("a tensor without elements is as good as none") {
  TinyCheckpoint empty;
  empty.values["model.layers.1.mlp.shared_experts.up_proj.weight"] = {};
  empty.shapes["model.layers.1.mlp.shared_experts.up_proj.weight"] = {0, 8};
  CHECK(refused(empty).empty());
}

TEST_CASE("tied embeddings: values count, not the type that they are stored in") {
  TinyCheckpoint c = tied();
  for (auto& [name, values] : c.values) {
    for (float& f : values) f = static_cast<float>(Eigen::bfloat16(f));
  }
  const TemporaryFolder folder;
  auto write = [&] {
    write_file(folder.path() / "config.json", c.config.dump());
    Json index = {{"weight_map", Json::object()}};
    for (const std::string type : {"F32", "BF16"}) {
      auto mine = [&](const std::string& name) { return (name == "lm_head.weight") == (type == "BF16"); };
      const auto shard = c.pack(type, mine);
      write_file(folder.path() / type, safetensors_file(shard.first.dump(), shard.second));
      for (const auto& [name, values] : c.values) {
        if (mine(name)) index["weight_map"][name] = type;
      }
    }
    write_file(folder.path() / "model.safetensors.index.json", index.dump());
  };
  write();
  CHECK(refused_folder(folder.path()).empty());
  c.values["lm_head.weight"][9] = 0.125F;
  write();
  CHECK(says(refused_folder(folder.path()), {"BF16: tensor \"lm_head.weight\" is 0.125 at [1, 1] where"}));
}

TEST_CASE("what shards hold beside their index is read, named or refused") {
  TinyCheckpoint c = tiny_qwen();
  const std::string stray = "model.layers.0.self_attn.q_norm.weight";
  c.values[stray] = {1};
  c.shapes[stray] = {1};
  const TemporaryFolder folder;
  // The second shard has the last norm and a tensor that this model does not read; with `twice` also the output matrix, which
  // the first one has.
  auto write = [&](bool twice) {
    write_file(folder.path() / "config.json", c.config.dump());
    Json index = {{"weight_map", Json::object()}};
    for (const std::string shard : {"1.safetensors", "2.safetensors"}) {
      auto mine = [&](const std::string& name) {
        const bool second = name == "model.norm.weight" || name == stray;
        return second == (shard == "2.safetensors") || (twice && name == "lm_head.weight");
      };
      const auto packed = c.pack("F32", mine);
      write_file(folder.path() / shard, safetensors_file(packed.first.dump(), packed.second));
      for (const auto& [name, values] : c.values) {
        if (mine(name) && name != stray) index["weight_map"].emplace(name, shard);
      }
    }
    write_file(folder.path() / "model.safetensors.index.json", index.dump());
    return index;
  };
  write(true);
  CHECK(says(refused_folder(folder.path()), {"2.safetensors: tensor \"lm_head.weight\" is in 1.safetensors, too"}));
  CHECK(says(refused_folder(folder.path()), {"which model.safetensors.index.json names for it: expected one of them"}));
  Json index = write(false);
  CHECK(says(refused_folder(folder.path()), {stray}));
  c.values.erase(stray);
  index = write(false);
  index["weight_map"].erase("lm_head.weight");
  write_file(folder.path() / "model.safetensors.index.json", index.dump());
  CHECK(refused_folder(folder.path()).empty());
}

TEST_CASE("qkv_bias: a Qwen2-MoE has biases of queries, keys and values unless it says false") {
  CHECK(refused(tiny_qwen()).empty());
  TinyCheckpoint said = tiny_qwen();
  said.config["qkv_bias"] = true;
  CHECK(tiny_logits(said) == tiny_logits(tiny_qwen()));
  said.values.erase("model.layers.1.self_attn.k_proj.bias");
  CHECK(says(refused(said), {"tensor \"model.layers.1.self_attn.k_proj.bias\" is missing"}));
  said.config.erase("qkv_bias");
  CHECK(says(refused(said), {"tensor \"model.layers.1.self_attn.k_proj.bias\" is missing"}));
}

TEST_CASE("qkv_bias: false computes without biases") {
  TinyCheckpoint without = tiny_qwen(), zero = tiny_qwen();
  without.config["qkv_bias"] = false;
  remove_biases(without);
  REQUIRE(without.values.size() == tiny_qwen().values.size() - 6);
  for (auto& [name, values] : zero.values) {
    if (name.ends_with("_proj.bias")) std::fill(values.begin(), values.end(), 0.0F);
  }
  const std::vector<float> logits = tiny_logits(without);
  CHECK(logits == tiny_logits(zero));
  CHECK(logits != tiny_logits(tiny_qwen()));
}

TEST_CASE("biases that the model does not have are refused") {
  for (const std::string part : {"q", "k", "v"}) {
    CAPTURE(part);
    const std::string name = "model.layers.1.self_attn." + part + "_proj.bias";
    TinyCheckpoint qwen = tiny_qwen();
    const std::vector<float> bias = qwen.values.at(name);
    qwen.config["qkv_bias"] = false;
    remove_biases(qwen);
    qwen.values[name] = bias;
    CHECK(says(refused(qwen), {"model.safetensors: tensor \"" + name + "\" is there, expected none",
                               "config.json has \"qkv_bias\": false", "set it to true", "remove all of them"}));
    TinyCheckpoint mixtral;
    mixtral.values[name] = bias;
    mixtral.shapes[name] = qwen.shapes.at(name);
    CHECK(says(refused(mixtral), {"model.safetensors: tensor \"" + name + "\" is there, expected none",
                                  "a Mixtral has no biases", "remove all of them"}));
  }
  TinyCheckpoint mixtral;
  mixtral.config["qkv_bias"] = true;
  CHECK(says(refused(mixtral), {"field \"qkv_bias\": expected false, a Mixtral has no biases, got true"}));
}
