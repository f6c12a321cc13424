// Tiny checkpoints of every family that the engine computes, against what transformers computes from them (float32, eager
// attention, no cache).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "ferry/router/top_k.hpp"
#include "stacks/stack_options.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

constexpr float largest_error = 1e-4F, weight_tolerance = 1e-5F, tie = 1e-5F;

std::filesystem::path folder_of(const std::string& family) {
  return test::golden_file("zoo") / family;
}

std::vector<std::uint32_t> token_ids_of(const Tensor& t) {
  std::vector<std::uint32_t> out(t.elements());
  std::memcpy(out.data(), t.data, t.bytes);
  return out;
}

Matrix matrix(const Tensor& t) {
  const std::vector<float> f = t.to_floats();
  return Eigen::Map<const Matrix>(f.data(), static_cast<Eigen::Index>(t.shape[0]),
                                  static_cast<Eigen::Index>(t.shape[1]));
}

std::unique_ptr<ExpertRunner> runner_of(CpuModel& model, const std::string& stack, double share) {
  RunnerOptions o;
  o.stack = stack;
  o.max_rows = 128;
  o.poison = true;
  o.budget_bytes = static_cast<std::uint64_t>(
      share * static_cast<double>(model_shape(model.config(), model.store(), 1).all_bytes()));
  model.add_precisions(find_stack(stack).precisions);
  return make_runner(model, o);
}

/// Logits [tokens, vocabulary] of a text. The first `prompt` tokens run in chunks, the others one by one.
Matrix run(CpuModel& model, ExpertRunner& runner, const std::vector<std::uint32_t>& tokens, std::uint32_t prompt,
           std::uint32_t chunk, const GateObserver& observer = {}) {
  const auto n = static_cast<std::uint32_t>(tokens.size());
  Matrix all(n, model.config().vocabulary);
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(n));
  for (std::uint32_t first = 0, count = 0; first < n; first += count) {
    count = first < prompt ? std::min({chunk, n - first, prompt - first}) : 1;
    std::vector<TokenRow> rows;
    for (std::uint32_t i = 0; i < count; ++i) rows.push_back({0, tokens[first + i], first + i});
    const Phase phase = count == 1 ? Phase::decode : Phase::prefill;
    all.middleRows(first, count) = model.forward(phase, rows, caches, runner, count, observer);
  }
  runner.end_sequence(0);
  return all;
}

/// As many tokens as `count` says, each the likeliest.
std::vector<std::uint32_t> greedy(CpuModel& model, ExpertRunner& runner, std::vector<std::uint32_t> tokens,
                                  std::size_t count) {
  std::vector<std::uint32_t> made;
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(static_cast<std::uint32_t>(tokens.size() + count)));
  std::uint32_t at = 0;
  while (made.size() < count) {
    std::vector<TokenRow> rows;
    for (; at < tokens.size(); ++at) rows.push_back({0, tokens[at], at});
    const Matrix logits = model.forward(made.empty() ? Phase::prefill : Phase::decode, rows, caches, runner, 1);
    Eigen::Index best = 0;
    logits.row(0).maxCoeff(&best);
    made.push_back(static_cast<std::uint32_t>(best));
    tokens.push_back(made.back());
  }
  runner.end_sequence(0);
  return made;
}

/// Checks that each row chooses the golden's experts with its weights, where no other expert scores the same.
struct ChoiceCheck {
  const ModelConfig& config;
  const Safetensors& golden;
  TopK router;
  std::uint32_t first = 0;  ///< token of the rows to come
  std::uint64_t rows = 0, differing = 0;
  float worst_weight = 0;

  ChoiceCheck(CpuModel& model, const Safetensors& file) : config(model.config()), golden(file) {
    Carver none;
    router.reserve(none, model_shape(config, model.store(), 1));
  }

  void operator()(std::uint32_t layer, const GateScores& scores) {
    const std::string at = "long.layer." + std::to_string(config.moe_layers[layer]) + ".";
    const std::vector<std::uint32_t> index = token_ids_of(golden.at(at + "topk_index"));
    const std::vector<float> weight = golden.at(at + "topk_weight").to_floats();
    const std::uint32_t k = config.moe(layer).top_k;
    for (Eigen::Index r = 0; r < scores.select.rows(); ++r, ++rows) {
      std::vector<Route> routes(config.top_k);
      Out<Route> out{routes.data(), config.top_k, 0};
      const std::vector<float> select(scores.select.row(r).begin(), scores.select.row(r).end());
      const std::vector<float> weigh(scores.weight.row(r).begin(), scores.weight.row(r).end());
      router.route(Phase::decode, {0, select, weigh, {}, 0, static_cast<std::uint16_t>(k)}, {}, out);
      routes.resize(k);
      float least = select[routes[k - 1].expert];
      const std::size_t place = (first + static_cast<std::size_t>(r)) * k;
      for (const Route& route : routes) {
        const auto begin = index.begin() + static_cast<std::ptrdiff_t>(place), end = begin + k;
        const auto found = std::find(begin, end, route.expert);
        if (found == end) {
          differing += select[route.expert] - least > tie ? 1 : 0;
        } else {
          worst_weight =
              std::max(worst_weight, std::abs(route.weight - weight[place + static_cast<std::size_t>(found - begin)]));
        }
      }
    }
  }
};

void check_family(const std::string& family) {
  CAPTURE(family);
  CpuModel model(folder_of(family));
  for (const std::string& note : model.notes()) FAIL_CHECK(note);
  const Safetensors golden(folder_of(family) / "expected.safetensors");
  const auto resident = runner_of(model, "resident", 1);
  float worst = 0;
  for (const std::string prompt : {"long", "short"}) {
    CAPTURE(prompt);
    const std::vector<std::uint32_t> tokens = token_ids_of(golden.at(prompt + ".input_ids"));
    const Matrix logits = matrix(golden.at(prompt + ".logits"));
    for (const std::uint32_t chunk : {128U, 19U, 1U}) {  // at once, in uneven pieces, and token by token
      CAPTURE(chunk);
      ChoiceCheck choices(model, golden);
      GateObserver observer;
      std::uint32_t seen = 0;
      if (prompt == "long") {
        observer = [&](std::uint32_t layer, const Matrix& input, const GateScores& scores) {
          choices.first = seen;
          choices(layer, scores);
          if (layer + 1 == model.config().moe_layer_count()) seen += static_cast<std::uint32_t>(input.rows());
        };
      }
      const Matrix ours = run(model, *resident, tokens, 128, chunk, observer);
      REQUIRE(ours.allFinite());
      worst = std::max(worst, (ours - logits).cwiseAbs().maxCoeff());
      CHECK(choices.differing == 0);
      CHECK(choices.worst_weight <= weight_tolerance * static_cast<float>(model.config().routed_scale));
      CHECK(choices.rows == (prompt == "long" ? tokens.size() * model.config().moe_layer_count() : 0));
    }
    const auto made = token_ids_of(golden.at(prompt + ".greedy"));
    CHECK(greedy(model, *resident, tokens, made.size()) == made);
  }
  CHECK(worst <= largest_error);
  MESSAGE(family << ": largest error of a logit " << worst);
}

/// Every lossless stack gives what the resident model gives, bit for bit, from a fraction of its experts.
void check_stacks(const std::string& family) {
  CAPTURE(family);
  CpuModel model(folder_of(family));
  const Safetensors golden(folder_of(family) / "expected.safetensors");
  const std::vector<std::uint32_t> tokens = token_ids_of(golden.at("long.input_ids"));
  const Matrix right = run(model, *runner_of(model, "resident", 1), tokens, 50, 30);
  for (const StackInfo& stack : all_stacks()) {
    if (!stack.keeps_every_bit() || stack.keeps_everything) continue;
    CAPTURE(stack.name);
    const auto runner = runner_of(model, stack.name, 0.4);
    const Matrix made = run(model, *runner, tokens, 50, 30);
    CHECK(std::memcmp(made.data(), right.data(), static_cast<std::size_t>(right.size()) * sizeof(float)) == 0);
  }
}

}  // namespace

TEST_CASE("deepseek_v2 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("deepseek_v2");
  check_stacks("deepseek_v2");
}
TEST_CASE("deepseek_v2_lite is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("deepseek_v2_lite");
  check_stacks("deepseek_v2_lite");
}
TEST_CASE("deepseek_v3 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("deepseek_v3");
  check_stacks("deepseek_v3");
}
TEST_CASE("dots1 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("dots1");
  check_stacks("dots1");
}
TEST_CASE("ernie4_5_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("ernie4_5_moe");
  check_stacks("ernie4_5_moe");
}
TEST_CASE("flex_olmo is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("flex_olmo");
  check_stacks("flex_olmo");
}
TEST_CASE("glm4_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("glm4_moe");
  check_stacks("glm4_moe");
}
TEST_CASE("gpt_oss is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("gpt_oss");
  check_stacks("gpt_oss");
}
TEST_CASE("granitemoe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("granitemoe");
  check_stacks("granitemoe");
}
TEST_CASE("granitemoeshared is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("granitemoeshared");
  check_stacks("granitemoeshared");
}
TEST_CASE("hunyuan_v1_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("hunyuan_v1_moe");
  check_stacks("hunyuan_v1_moe");
}
TEST_CASE(
    "hunyuan_layers, whose layers differ, is computed as transformers computes it, and by every stack as by none") {
  check_family("hunyuan_layers");
  check_stacks("hunyuan_layers");
}
TEST_CASE("minimax_m2 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("minimax_m2");
  check_stacks("minimax_m2");
}
TEST_CASE("mixtral is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("mixtral");
  check_stacks("mixtral");
}
TEST_CASE("mixtral_window is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("mixtral_window");
  check_stacks("mixtral_window");
}
TEST_CASE("olmoe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("olmoe");
  check_stacks("olmoe");
}
TEST_CASE("phimoe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("phimoe");
  check_stacks("phimoe");
}
TEST_CASE("qwen2_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen2_moe");
  check_stacks("qwen2_moe");
}
TEST_CASE("qwen2_moe_dense0 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen2_moe_dense0");
  check_stacks("qwen2_moe_dense0");
}
TEST_CASE("qwen3_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen3_moe");
  check_stacks("qwen3_moe");
}
TEST_CASE("qwen3_moe_yarn is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen3_moe_yarn");
  check_stacks("qwen3_moe_yarn");
}
TEST_CASE("llama4 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("llama4");
  check_stacks("llama4");
}
TEST_CASE("qwen3_next is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen3_next");
  check_stacks("qwen3_next");
}
TEST_CASE("qwen3_5_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen3_5_moe");
  check_stacks("qwen3_5_moe");
}
TEST_CASE("glm4v_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("glm4v_moe");
  check_stacks("glm4v_moe");
}

TEST_CASE("gemma4 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("gemma4");
  check_stacks("gemma4");
}
TEST_CASE("where gates read something else than experts, predictions are made of what gates read") {
  CpuModel model(folder_of("gemma4"));
  const Safetensors golden(folder_of("gemma4") / "expected.safetensors");
  const std::vector<std::uint32_t> tokens = token_ids_of(golden.at("long.input_ids"));
  const std::uint32_t layers = model.config().moe_layer_count();
  std::vector<Eigen::Index> named(layers, -1);  // what the gate of the layer before predicts
  std::vector<std::uint64_t> right(layers, 0);
  const GateObserver observer = [&](std::uint32_t layer, const Matrix& input, const GateScores& scores) {
    REQUIRE(input.rows() == 1);
    Matrix own = input * model.gates().of(layer).transpose();
    own = (own.array() - own.maxCoeff()).exp();
    CHECK((own / own.sum() - scores.select).cwiseAbs().maxCoeff() < 1e-5F);
    Eigen::Index best;
    scores.select.row(0).maxCoeff(&best);
    right[layer] += best == named[layer] ? 1 : 0;
    if (layer + 1 < layers) (model.gates().of(layer + 1) * input.transpose()).col(0).maxCoeff(&named[layer + 1]);
  };
  const auto runner = runner_of(model, "cross-layer-lru", 0.5);
  run(model, *runner, tokens, 0, 1, observer);
  for (std::uint32_t l = 1; l < layers; ++l) {
    CAPTURE(l);
    CHECK(runner->statistics().accuracy[0][l].rows == tokens.size());
    CHECK(runner->statistics().accuracy[0][l].rows_top1 == right[l]);
    CHECK(right[l] < tokens.size());
  }
  // If a partial hidden state lacks nothing, nothing is left to predict.
  const auto partial = runner_of(model, "importance+pre", 1);
  run(model, *partial, tokens, 0, 1);  // makes everything resident
  const Accuracy before = partial->statistics().accuracy[0][2];
  run(model, *partial, tokens, 0, 1);
  const Accuracy after = partial->statistics().accuracy[0][2];
  CHECK(after.rows - before.rows == tokens.size());
  CHECK(after.rows_top1 - before.rows_top1 == tokens.size());
}
TEST_CASE("lfm2_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("lfm2_moe");
  check_stacks("lfm2_moe");
}

TEST_CASE("granitemoehybrid is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("granitemoehybrid");
  check_stacks("granitemoehybrid");
}

TEST_CASE("granitemoehybrid with positions, biases and groups is computed as transformers computes it") {
  check_family("granitemoehybrid_rope");
}

TEST_CASE("afmoe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("afmoe");
  check_stacks("afmoe");
}
TEST_CASE("exaone_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("exaone_moe");
  check_stacks("exaone_moe");
}
TEST_CASE("glm4_moe_lite is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("glm4_moe_lite");
  check_stacks("glm4_moe_lite");
}
TEST_CASE("hy_v3 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("hy_v3");
  check_stacks("hy_v3");
}
TEST_CASE("qwen3_vl_moe is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("qwen3_vl_moe");
  check_stacks("qwen3_vl_moe");
}
TEST_CASE("qwen3_vl_moe's experts lie as on the hub, or as transformers 5 may write them") {
  const test::TemporaryFolder folder;
  const std::filesystem::path hub = folder_of("qwen3_vl_moe");
  const Safetensors file(hub / "model.safetensors");
  Json header;
  std::string data;
  for (const auto& [name, t] : file.tensors()) {
    std::string bytes(reinterpret_cast<const char*>(t.data), t.bytes);
    std::vector<std::uint64_t> shape = t.shape;
    if (name.find(".experts.") != std::string::npos) {
      std::swap(shape[1], shape[2]);
      for (std::uint64_t e = 0, n = shape[1] * shape[2]; e < shape[0]; ++e) {
        for (std::uint64_t i = 0; i < n; ++i) {
          const std::uint64_t from = i % shape[2] * shape[1] + i / shape[2];
          std::memcpy(&bytes[2 * (e * n + i)], t.data + 2 * (e * n + from), 2);
        }
      }
    }
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  test::write_file(folder.path() / "model.safetensors", test::safetensors_file(header.dump(), data));
  std::filesystem::copy(hub / "config.json", folder.path() / "config.json");
  CpuModel model(folder.path()), original(hub);
  const std::vector<std::uint32_t> tokens = {256, 84, 104, 101, 32};
  const Matrix rows = run(model, *runner_of(model, "lru", 0.4), tokens, 5, 5);
  CHECK(rows == run(original, *runner_of(original, "lru", 0.4), tokens, 5, 5));
}
TEST_CASE("mistral4 is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("mistral4");
  check_stacks("mistral4");
}
TEST_CASE("solar_open is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("solar_open");
  check_stacks("solar_open");
}
TEST_CASE(
    "deepseek_v3_bias, whose attention has biases, is computed as transformers computes it, and by every lossless "
    "stack as by none") {
  check_family("deepseek_v3_bias");
  check_stacks("deepseek_v3_bias");
}
TEST_CASE(
    "deepseek_v2_bias, whose attention has biases, is computed as transformers computes it, and by every lossless "
    "stack as by none") {
  check_family("deepseek_v2_bias");
  check_stacks("deepseek_v2_bias");
}
TEST_CASE(
    "qwen3_next_bias, whose attention has biases, is computed as transformers computes it, and by every lossless stack "
    "as by none") {
  check_family("qwen3_next_bias");
  check_stacks("qwen3_next_bias");
}
TEST_CASE(
    "qwen3_moe_fp8, whose experts are one tensor of FP8 a layer, is computed as transformers computes it, and by every "
    "lossless stack as by none") {
  check_family("qwen3_moe_fp8");
  check_stacks("qwen3_moe_fp8");
}
TEST_CASE(
    "olmoe_clip, which bounds queries and keys, is computed as transformers computes it, and by every lossless stack "
    "as "
    "by none") {
  check_family("olmoe_clip");
  check_stacks("olmoe_clip");
}
TEST_CASE("olmoe_as_gguf is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("olmoe_as_gguf");
  check_stacks("olmoe_as_gguf");
}
TEST_CASE("mistral4_as_gguf is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("mistral4_as_gguf");
  check_stacks("mistral4_as_gguf");
}
TEST_CASE("afmoe_as_gguf is computed as transformers computes it, and by every lossless stack as by none") {
  check_family("afmoe_as_gguf");
  check_stacks("afmoe_as_gguf");
}
TEST_CASE(
    "llama4_as_gguf, whose chunks are longer than texts, is computed as transformers computes it, and by every "
    "lossless stack as by none") {
  check_family("llama4_as_gguf");
  check_stacks("llama4_as_gguf");
}
TEST_CASE("deepseek_moe is computed as its makers' rules say, and by every lossless stack as by none") {
  check_family("deepseek_moe");
  check_stacks("deepseek_moe");
}
TEST_CASE("xverse_moe is computed as its makers' rules say, and by every lossless stack as by none") {
  check_family("xverse_moe");
  check_stacks("xverse_moe");
}
