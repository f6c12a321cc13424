// Checkpoints as transformers 5 saves them, against the router logits that it computes from them
// (tests/goldens/make_transformers5.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

/// Writes the checkpoint's folder. What the golden leaves out is zero, since no score that is checked depends on it.
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
  caches.emplace_back(c, CacheRoom(c, count));
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

/// Writes a family's tiny checkpoint with transformers 5's internal names, as `save_original_format=False` leaves them, and
/// with all experts of a layer in two tensors. `renamed`: parts of names and their replacements.
void write_inner(const std::string& family, const std::vector<std::pair<std::string, std::string>>& renamed,
                 const std::array<std::string, 3>& parts, const std::filesystem::path& folder) {
  const Safetensors file(golden_file("zoo") / family / "model.safetensors");
  struct Made {
    std::vector<std::uint64_t> shape;
    std::string bytes, dtype;
  };
  std::map<std::string, Made> made;
  std::map<std::string, std::map<std::pair<std::uint32_t, int>, const Tensor*>> experts;  // by the start of their names
  for (const auto& [name, tensor] : file.tensors()) {
    const std::size_t at = name.find(".experts.");
    if (at != std::string::npos) {
      const std::string behind = name.substr(at + 9);  // "3.w1.weight"
      const std::size_t dot = behind.find('.');
      const std::string part = behind.substr(dot + 1, behind.rfind('.') - dot - 1);
      const auto which = std::find(parts.begin(), parts.end(), part) - parts.begin();
      experts[name.substr(0, name.find("layers.") + 7) +
              std::to_string(std::stoul(name.substr(name.find("layers.") + 7)))]
             [{static_cast<std::uint32_t>(std::stoul(behind)), static_cast<int>(which)}] = &tensor;
      continue;
    }
    std::string inner = name;
    for (const auto& [from, to] : renamed) {
      if (const std::size_t found = inner.find(from); found != std::string::npos) inner.replace(found, from.size(), to);
    }
    made[inner] = {tensor.shape, {reinterpret_cast<const char*>(tensor.data), tensor.bytes}, tensor.dtype_name};
  }
  for (const auto& [layer, all] : experts) {
    Made both, down;
    for (const auto& [which, tensor] : all) {
      Made& to = which.second == 2 ? down : both;
      to.bytes.append(reinterpret_cast<const char*>(tensor->data), tensor->bytes);
      to.dtype = tensor->dtype_name;
      to.shape = {all.size() / 3, tensor->shape[0] * (which.second == 2 ? 1 : 2), tensor->shape[1]};
    }
    made[layer + ".mlp.experts.gate_up_proj"] = both;
    made[layer + ".mlp.experts.down_proj"] = down;
  }
  Json header = Json::object();
  std::string data;
  for (const auto& [name, tensor] : made) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  write_file(folder / "model.safetensors", safetensors_file(header.dump(), data));
  std::filesystem::copy_file(golden_file("zoo") / family / "config.json", folder / "config.json");
}

/// Logits of a text for which each family has tokens.
Matrix short_text_logits(const std::filesystem::path& folder) {
  CpuModel model(folder);
  CHECK(model.notes().empty());
  std::vector<TokenRow> rows;
  for (std::uint32_t i = 0; i < 12; ++i) rows.push_back({0, 7 * i + 3, i});
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(12));
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = 12;
  const auto runner = make_runner(model, o);
  return model.forward(Phase::prefill, rows, caches, *runner, 12);
}

/// The message that refuses the golden's config.json after a change; empty if it is accepted.
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

TEST_CASE("files by the names that transformers 5 has inside give the same logits as by the family's own") {
  const std::array<std::string, 3> short_parts = {"w1", "w3", "w2"}, long_parts = {"gate_proj", "up_proj", "down_proj"};
  const std::pair<std::string, std::string> sparse = {"block_sparse_moe.gate.", "mlp.gate."},
                                            input = {"block_sparse_moe.input_linear.weight",
                                                     "block_sparse_moe.experts.gate_up_proj"},
                                            output = {"block_sparse_moe.output_linear.weight",
                                                      "block_sparse_moe.experts.down_proj"},
                                            router = {"router.layer.", "router."};
  const struct {
    const char* family;
    std::vector<std::pair<std::string, std::string>> renamed;
    std::array<std::string, 3> parts;
  } families[] = {
      {"mixtral", {sparse}, short_parts},
      {"phimoe", {{"block_sparse_moe.gate.", "mlp.router."}}, short_parts},
      {"minimax_m2", {sparse, {"block_sparse_moe.e_score", "mlp.e_score"}}, short_parts},
      {"granitemoe", {input, output, router}, short_parts},
      {"granitemoeshared", {input, output, router}, short_parts},
      {"ernie4_5_moe", {{"mlp.moe_statics.", "mlp.gate.moe_statics."}}, long_parts},
  };
  for (const auto& f : families) {
    CAPTURE(f.family);
    const TemporaryFolder folder;
    write_inner(f.family, f.renamed, f.parts, folder.path());
    CHECK(short_text_logits(folder.path()) == short_text_logits(golden_file("zoo") / f.family));
  }
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
  CHECK(says(refused("qwen2_moe", {{"mlp_only_layers", Json::object()}}),
             {"field \"mlp_only_layers\": expected a list of layers"}));
  const Json yarn = {{"factor", 4.0}, {"original_max_position_embeddings", 128}, {"rope_type", "yarn"}};
  CHECK(says(refused("mixtral", {{"rope_parameters", yarn}}), {"rope_parameters: field \"rope_theta\" is missing"}));
}
