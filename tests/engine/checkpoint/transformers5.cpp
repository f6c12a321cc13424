// Checkpoints as transformers 5 saves them, against the router logits that it computes from them
// (tests/goldens/make_transformers5.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "math/host_math.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

constexpr float score_tolerance = 1e-4F;
constexpr std::uint32_t checked_layers = 2;

Safetensors golden(const std::string& family) {
  return Safetensors(golden_file("transformers5-" + family + ".safetensors"));
}

std::vector<std::uint32_t> token_ids(const Safetensors& file) {
  const Tensor& t = file.at("input_ids");
  std::vector<std::uint32_t> out(t.elements());
  std::memcpy(out.data(), t.data, t.bytes);
  return out;
}

/// The checkpoint's folder. Zero is what the golden leaves out, since no score that is checked depends on it.
void write_folder(const Safetensors& file, const std::filesystem::path& folder) {
  write_file(folder / "config.json", file.metadata().at("config"));
  const std::vector<std::uint32_t> tokens = token_ids(file);
  const Json shapes = parse_json(file.metadata().at("shapes"), "shapes");
  Json header = Json::object();
  std::string data;
  for (const auto& [name, shape] : shapes.items()) {
    const std::size_t begin = data.size();
    std::size_t bytes = 2;
    for (const Json& dimension : shape) bytes *= dimension.get<std::size_t>();
    data.resize(begin + bytes);
    if (const auto found = file.tensors().find(name); found != file.tensors().end()) {
      REQUIRE(found->second.bytes == bytes);
      std::memcpy(data.data() + begin, found->second.data, bytes);
    }
    if (name == "model.embed_tokens.weight") {
      const Tensor& rows = file.at("embedding_rows");  // [tokens, hidden]
      const std::size_t row = rows.bytes / tokens.size();
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::memcpy(data.data() + begin + tokens[i] * row, rows.data + i * row, row);
      }
    }
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  write_file(folder / "model.safetensors", safetensors_file(header.dump(), data));
}

void check_family(const std::string& family) {
  const Safetensors file = golden(family);
  const TemporaryFolder folder;
  write_folder(file, folder.path());
  CpuModel model(folder.path());
  const ModelConfig& c = model.config();
  const std::vector<std::uint32_t> tokens = token_ids(file);
  const auto count = static_cast<std::uint32_t>(tokens.size());
  std::vector<TokenRow> rows;
  for (std::uint32_t i = 0; i < count; ++i) rows.push_back({0, tokens[i], i});
  std::vector<KvCache> caches;
  caches.emplace_back(c, count);
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = count;
  const auto runner = make_runner(model, o);
  float worst = 0;
  std::uint32_t compared = 0;
  auto check_scores = [&](std::uint32_t layer, const Matrix& /*input*/, const GateScores& said) {
    const Matrix& ours = said.weight;
    if (layer >= checked_layers) return;
    const std::vector<float> logits = file.at("router_logits." + std::to_string(layer)).to_floats();
    Matrix theirs = Eigen::Map<const Matrix>(logits.data(), count, c.experts);
    softmax_rows(theirs);
    REQUIRE(ours.allFinite());
    worst = std::max(worst, (ours - theirs).cwiseAbs().maxCoeff());
    ++compared;
  };
  model.forward(Phase::prefill, rows, caches, *runner, 1, check_scores);
  CHECK(compared == checked_layers);
  CHECK(worst <= score_tolerance);
  MESSAGE(family << ": largest error of a gate score " << worst);
}

/// How the golden's config.json is refused once it is changed; empty if it is not.
std::string refused(const std::string& family, const Json& change) {
  const TemporaryFolder folder;
  Json config = parse_json(golden(family).metadata().at("config"), "config");
  config.update(change);
  write_file(folder.path() / "config.json", config.dump());
  return refusal("config.json", [&] { static_cast<void>(read_model_config(folder.path())); });
}

}  // namespace

TEST_CASE("a Mixtral that transformers 5 has saved scores experts as transformers does") {
  check_family("mixtral");
}

TEST_CASE("a Qwen2-MoE that transformers 5 has saved scores experts as transformers does") {
  check_family("qwen2_moe");
}

TEST_CASE("what transformers 5 saves and no model computes is refused for what it is") {
  CHECK(refused("mixtral", Json::object()).empty());
  CHECK(refused("qwen2_moe", Json::object()).empty());
  const Json sliding = Json::array({"sliding_attention", "full_attention", "sliding_attention"});
  CHECK(refused("qwen2_moe", {{"use_sliding_window", true}, {"sliding_window", 16}, {"layer_types", sliding}}).empty());
  CHECK(says(refused("qwen2_moe", {{"layer_types", sliding}}), {"since layer 0 has sliding attention"}));
  CHECK(says(
      refused("mixtral", {{"layer_types", Json::array({"chunked_attention", "full_attention", "full_attention"})}}),
      {"where layer 0 has \"chunked_attention\", which is not supported"}));
  CHECK(says(refused("qwen2_moe", {{"mlp_only_layers", Json::array({0, 1, 2})}}),
             {"field \"num_hidden_layers\": expected one layer with experts at least"}));
  const Json yarn = {{"factor", 4.0}, {"original_max_position_embeddings", 128}, {"rope_type", "yarn"}};
  CHECK(says(refused("mixtral", {{"rope_parameters", yarn}}), {"rope_parameters: field \"rope_theta\" is missing"}));
}
