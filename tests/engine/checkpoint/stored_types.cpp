// Checkpoints whose weights are FP8 or MXFP4, beside twins whose weights are the floats that these stand for.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "store/store_file.hpp"
#include "support/json.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

/// A tensor of a checkpoint that is being made.
struct Made {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Made>;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Tensors tensors_of(const std::string& family) {
  const Safetensors file(golden_file("zoo") / family / "model.safetensors");
  Tensors all;
  for (const auto& [name, t] : file.tensors()) {
    all[name] = {t.dtype_name, t.shape, {reinterpret_cast<const char*>(t.data), t.bytes}};
  }
  return all;
}

void write(const std::filesystem::path& folder, const std::string& family, const Json& change, const Tensors& tensors) {
  Json config = read_json(golden_file("zoo") / family / "config.json");
  config.update(change);
  write_file(folder / "config.json", config.dump());
  SafetensorsWriter writer;
  for (const auto& [name, t] : tensors) writer.add(name, t.dtype.c_str(), t.shape, t.bytes);
  OutputFile out(folder / "model.safetensors");
  writer.commit(out, {});
}

std::vector<float> logits_of(const std::filesystem::path& folder, DType* experts = nullptr) {
  CpuModel model(folder);
  if (experts != nullptr) *experts = model.store().layout().dtype;
  RunnerOptions o;
  o.stack = "lru";
  o.max_rows = 16;
  o.budget_bytes = model_shape(model.config(), model.store(), 1).all_bytes() / 2;
  const auto runner = make_runner(model, o);
  std::vector<TokenRow> rows;
  for (std::uint32_t i = 0; i < 12; ++i) rows.push_back({0, 40 + 7 * i, i});
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(12));
  const Matrix logits = model.forward(Phase::prefill, rows, caches, *runner, 12);
  return {logits.data(), logits.data() + logits.size()};
}

/// An 8-bit float, E4M3 by its definition: bias 7, no infinities.
float e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3U & 15U), fraction = static_cast<int>(code & 7U);
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return static_cast<float>((code & 128U) != 0 ? -magnitude : magnitude);
}

/// Random E4M3 codes of numbers up to 2 in magnitude.
std::string codes(std::size_t count, Random& random) {
  std::string all(count, '\0');
  for (char& c : all) c = static_cast<char>(random.below(64) | (random.below(2) << 7U));
  return all;
}

const Json fp8 = {
    {"quantization_config",
     {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}}}};

}  // namespace

TEST_CASE("FP8: a scale for 128 rows and 128 columns, also where the last block is not full") {
  Random random(5);
  const std::uint64_t rows = 130, columns = 300;
  const std::string code = codes(rows * columns, random);
  std::vector<float> scales(2 * 3);
  for (float& s : scales) s = random.unit() + 0.5F;
  Tensor of_scales;
  of_scales.dtype = DType::f32;
  of_scales.shape = {2, 3};
  of_scales.data = reinterpret_cast<const std::byte*>(scales.data());
  of_scales.bytes = scales.size() * sizeof(float);
  Tensor t;
  t.dtype = DType::f8_e4m3;
  t.shape = {rows, columns};
  t.data = reinterpret_cast<const std::byte*>(code.data());
  t.bytes = code.size();
  t.scales = &of_scales;
  const std::vector<float> floats = t.to_floats();
  std::vector<std::byte> stored(t.stored_bytes());
  t.copy_stored(stored.data());
  const BlockLayout m{rows, columns, BlockType::fp8};
  REQUIRE(stored.size() == m.bytes());
  for (std::uint32_t r = 0; r < rows; ++r) {
    for (std::uint32_t c = 0; c < columns; ++c) {
      const float expected = e4m3(static_cast<unsigned char>(code[r * columns + c])) * scales[r / 128 * 3 + c / 128];
      if (floats[r * columns + c] != expected) FAIL("at " << r << ", " << c);
      if (unpack_weight(m, stored.data(), r, c) != expected) FAIL("stored, at " << r << ", " << c);
    }
  }
}

TEST_CASE("a DeepSeek-V3 in FP8 computes what the floats that it stands for compute, bit for bit") {
  Random random(6);
  Tensors stored = tensors_of("deepseek_v3"), floats = stored;
  for (auto& [name, t] : tensors_of("deepseek_v3")) {
    if (t.shape.size() != 2 || name.find("proj") == std::string::npos) continue;
    const std::uint64_t count = t.shape[0] * t.shape[1];
    const float scale = 0.05F + 0.05F * random.unit();
    const std::string code = codes(count, random);
    std::vector<float> values;
    for (const char c : code) values.push_back(e4m3(static_cast<unsigned char>(c)) * scale);
    stored[name] = {"F8_E4M3", t.shape, code};
    stored[name + "_scale_inv"] = {"F32", {1, 1}, bytes_of(std::vector<float>{scale})};
    floats[name] = {"F32", t.shape, bytes_of(values)};
  }
  const TemporaryFolder a, b;
  write(a.path(), "deepseek_v3", fp8, stored);
  write(b.path(), "deepseek_v3", Json::object(), floats);
  DType type = DType::other;
  const std::vector<float> got = logits_of(a.path(), &type), expected = logits_of(b.path());
  CHECK(type == DType::fp8);
  CHECK(got == expected);
  CHECK(std::isfinite(got[0]));

  const std::string gone = "model.layers.1.mlp.experts.3.up_proj.weight_scale_inv";
  // A store that was packed with other scales belongs to another model.
  const auto checksum = [&] { return weights_checksum(Checkpoint(a.path()), read_model_config(a.path())); };
  const std::string own = checksum();
  Tensors other = stored;
  other[gone].bytes = bytes_of(std::vector<float>{2});
  write(a.path(), "deepseek_v3", fp8, other);
  CHECK(checksum() != own);
  Tensors lacking = stored;
  lacking.erase(gone);
  write(a.path(), "deepseek_v3", fp8, lacking);
  CHECK(says(refusal("model.safetensors", [&] { CpuModel model(a.path()); }),
             {"is F8_E4M3 without a \"" + gone + "\" beside it"}));
  lacking[gone] = {"F32", {2, 1}, bytes_of(std::vector<float>{1, 1})};
  write(a.path(), "deepseek_v3", fp8, lacking);
  CHECK(says(refusal("model.safetensors", [&] { CpuModel model(a.path()); }),
             {"tensor \"" + gone + "\" is F32 [2, 1], expected F32 [1, 1]"}));
}

namespace {

const Json fp8_whole = {{"quantization_config",
                         {{"quant_method", "fp8"}, {"activation_scheme", "static"}, {"weight_block_size", nullptr}}}};

/// A family's tensors with matrices in FP8, one scale each, and the same as floats. `of_both`: how many scales a tensor of
/// gates and ups has. `flat`: the shapes of scales are as short as can be, and scales are bf16.
std::pair<Tensors, Tensors> with_one_scale(const std::string& family, std::uint64_t of_both, bool flat,
                                           Random& random) {
  Tensors stored = tensors_of(family), floats = stored;
  const std::string weight = ".weight";
  for (auto& [name, t] : tensors_of(family)) {
    if (t.shape.size() < 2 || name.find("proj") == std::string::npos) continue;
    const bool fused = t.shape.size() == 3;
    const std::uint64_t experts = fused ? t.shape[0] : 1, each = name.ends_with("gate_up_proj") ? of_both : 1;
    std::uint64_t count = 1;
    for (const std::uint64_t d : t.shape) count *= d;
    std::vector<float> scales(experts * each), values;
    std::vector<Eigen::bfloat16> narrow;
    for (float& s : scales) {
      narrow.emplace_back(0.05F + 0.05F * random.unit());
      s = static_cast<float>(narrow.back());
    }
    const std::string code = codes(count, random);
    for (std::uint64_t i = 0; i < count; ++i) {
      values.push_back(e4m3(static_cast<unsigned char>(code[i])) * scales[i / (count / scales.size())]);
    }
    stored[name] = {"F8_E4M3", t.shape, code};
    floats[name] = {"F32", t.shape, bytes_of(values)};
    std::vector<std::uint64_t> shape;
    if (fused) shape = {experts};
    if (!fused && flat) shape = {1};
    if (fused && (each > 1 || !flat)) shape.push_back(each);
    if (fused && !flat) shape.push_back(1);
    stored[name + "_scale_inv"] = {flat ? "BF16" : "F32", shape, flat ? bytes_of(narrow) : bytes_of(scales)};
    const std::string scale = "activation_scale";
    stored[fused ? name + "_" + scale : name.substr(0, name.size() - weight.size()) + "." + scale] = {
        "F32", {}, bytes_of(std::vector<float>{3})};
  }
  return {stored, floats};
}

}  // namespace

TEST_CASE("FP8 with one scale for each matrix computes what the floats that it stands for compute, bit for bit") {
  Random random(8);
  for (const std::uint32_t kind : {0U, 1U, 2U, 3U, 4U, 5U}) {
    CAPTURE(kind);
    const char* family = kind < 2 ? "deepseek_v3" : "mistral4";
    auto [stored, floats] = with_one_scale(family, kind < 4 ? 1 : 2, kind % 2 == 1, random);
    const TemporaryFolder a, b;
    write(a.path(), family, fp8_whole, stored);
    write(b.path(), family, Json::object(), floats);
    DType type = DType::other;
    const std::vector<float> got = logits_of(a.path(), &type), expected = logits_of(b.path());
    CHECK(type == DType::fp8);
    CHECK(got == expected);
    CHECK(std::isfinite(got[0]));
    CHECK(CpuModel(a.path()).notes().empty());
  }
  // The config says what a scale applies to.
  const std::string experts = "language_model.model.layers.1.mlp.experts.";
  const auto refused = [&](const Json& config, const std::string& named, const std::function<void(Tensors&)>& spoil) {
    Tensors stored = with_one_scale("mistral4", 2, false, random).first;
    spoil(stored);
    const TemporaryFolder folder;
    write(folder.path(), "mistral4", config, stored);
    return refusal(named, [&] { CpuModel model(folder.path()); });
  };
  CHECK(says(refused(fp8_whole, "model.safetensors",
                     [&](Tensors& t) {
                       t[experts + "down_proj_scale_inv"] = {"F32", {8, 2, 1}, bytes_of(std::vector<float>(16, 1))};
                     }),
             {experts + "down_proj_scale_inv\" is F32 [8, 2, 1], expected F32 [8, 1, 1]"}));
  CHECK(says(refused(fp8, "_scale_inv", [](Tensors&) {}), {"expected a scale for 128 rows and columns"}));
  CHECK(says(refused(fp8_whole, "model.safetensors",
                     [&](Tensors& t) {
                       t[experts + "down_proj_scale_inv"] = {"F32", {8, 0}, ""};
                     }),
             {experts + "down_proj_scale_inv\" is F32 [8, 0], expected F32 [8, 1, 1]"}));
  for (const std::vector<std::uint64_t>& shape : {std::vector<std::uint64_t>{2}, {1, 2}, {2, 1}}) {
    const std::string own = "language_model.model.layers.0.self_attn.q_b_proj.weight_scale_inv";
    CHECK(says(refused(fp8_whole, "model.safetensors",
                       [&](Tensors& t) {
                         t[own] = {"F32", shape, bytes_of(std::vector<float>(2, 1))};
                       }),
               {own + "\" is F32 [", "expected F32 [1, 1]"}));
  }
  // Two scales are for gate and up: no other tensor may have two.
  const std::string keys = "language_model.model.layers.0.self_attn.k_b_proj.weight";
  CHECK(says(refused(fp8_whole, "model.safetensors",
                     [&](Tensors& t) {
                       t[keys] = {"F8_E4M3", {4, 16, 8}, codes(4 * 16 * 8, random)};
                       t[keys + "_scale_inv"] = {"F32", {4, 2}, bytes_of(std::vector<float>(8, 1))};
                     }),
             {keys + "_scale_inv\" is F32 [4, 2], expected F32 [4, 1, 1]"}));
}

TEST_CASE("FP8 of all experts of a layer in one tensor: what is wrong with it is named") {
  const TemporaryFolder folder;
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const auto refused = [&](const Json& change, const std::string& named, const std::function<void(Tensors&)>& spoil) {
    Tensors tensors = tensors_of("qwen3_moe_fp8");
    spoil(tensors);
    write(folder.path(), "qwen3_moe_fp8", change, tensors);
    return refusal(named, [&] { CpuModel model(folder.path()); });
  };
  CHECK(says(refused(Json::object(), "model.safetensors", [&](Tensors& t) { t.erase(name + "_scale_inv"); }),
             {"tensor \"" + name + "\" is F8_E4M3 without a \"" + name + "_scale_inv\" beside it"}));
  CHECK(says(refused(Json::object(), "model.safetensors",
                     [&](Tensors& t) {
                       t[name + "_scale_inv"].shape = {4, 1, 4};
                     }),
             {name + "_scale_inv\" is F32 [4, 1, 4], expected F32 [4, 2, 2]"}));
  // A gate and an up of 64 rows each would share the scales of 128 rows.
  const auto half = [&](Tensors& t) {
    for (const char* layer : {"0", "1"}) {
      const std::string at = std::string("model.layers.") + layer + ".mlp.experts.";
      Made &both = t[at + "gate_up_proj"], &scales = t[at + "gate_up_proj_scale_inv"];
      both.shape[1] /= 2;
      both.bytes.resize(both.bytes.size() / 2);
      scales.shape[1] /= 2;
      scales.bytes.resize(scales.bytes.size() / 2);
    }
  };
  CHECK(says(refused({{"moe_intermediate_size", 64}}, "gate_up_proj", half),
             {"has 128 rows for gate and up, expected a multiple of 256"}));
  CHECK(says(refused({{"quantization_config",
                       {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"expert_dtype", "fp4"}}}},
                     "config.json", [](Tensors&) {}),
             {"field \"expert_dtype\": expected \"fp8\""}));
  CHECK(refused(Json::object(), "model.safetensors", [](Tensors&) {}).empty());
}

TEST_CASE("a gpt-oss in MXFP4 computes what the floats that it stands for compute, bit for bit") {
  const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, 0, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  Random random(7);
  Tensors stored = tensors_of("gpt_oss"), floats = stored;
  const std::uint64_t experts = 8, hidden = 64, width = 32;
  for (int layer = 0; layer < 3; ++layer) {
    for (const bool down : {false, true}) {
      const std::string name =
          "model.layers." + std::to_string(layer) + ".mlp.experts." + (down ? "down_proj" : "gate_up_proj");
      const std::uint64_t rows = down ? hidden : 2 * width, columns = down ? width : hidden;
      std::string blocks(experts * rows * columns / 2, '\0'), scales(experts * rows * columns / 32, '\0');
      for (char& c : blocks) c = static_cast<char>(random.below(256));
      for (char& c : scales) c = static_cast<char>(121 + random.below(4));
      std::vector<float> f(experts * rows * columns);  // [experts, columns, rows]
      for (std::uint64_t i = 0; i < f.size(); ++i) {
        const unsigned both = static_cast<unsigned char>(blocks[i / 2]), code = i % 2 == 0 ? both & 15U : both >> 4U;
        const std::uint64_t e = i / (rows * columns), r = i / columns % rows, c = i % columns;
        f[(e * columns + c) * rows + r] = std::ldexp(values[code], static_cast<unsigned char>(scales[i / 32]) - 127);
      }
      stored.erase(name);
      stored[name + "_blocks"] = {"U8", {experts, rows, columns / 32, 16}, blocks};
      stored[name + "_scales"] = {"U8", {experts, rows, columns / 32}, scales};
      floats[name] = {"F32", {experts, columns, rows}, bytes_of(f)};
    }
  }
  const TemporaryFolder a, b;
  write(a.path(), "gpt_oss", {{"quantization_config", {{"quant_method", "mxfp4"}}}}, stored);
  write(b.path(), "gpt_oss", Json::object(), floats);
  DType type = DType::other;
  const std::vector<float> got = logits_of(a.path(), &type), expected = logits_of(b.path());
  CHECK(type == DType::mxfp4);
  CHECK(got == expected);
  CHECK(std::isfinite(got[0]));

  stored["model.layers.1.mlp.experts.down_proj_scales"].dtype = "I8";
  write(a.path(), "gpt_oss", Json::object(), stored);
  CHECK(says(refusal("down_proj_scales", [&] { CpuModel model(a.path()); }), {"is I8, expected U8"}));
}

TEST_CASE("what other quantizers make of a checkpoint is refused by name") {
  const TemporaryFolder folder;
  const auto refused = [&](const Json& quantization) {
    write(folder.path(), "mixtral", {{"quantization_config", quantization}}, {});
    return refusal("config.json", [&] { static_cast<void>(read_model_config(folder.path())); });
  };
  CHECK(refused(fp8["quantization_config"]).empty());
  Json published = fp8["quantization_config"];  // as of MiniMax-M2 and Qwen3.5-MoE
  published["fmt"] = "float8_e4m3fn";
  published["act_per_tensor"] = published["weight_per_tensor"] = false;
  CHECK(refused(published).empty());
  published["weight_per_tensor"] = true;
  CHECK(says(refused(published), {"field \"weight_per_tensor\": expected false"}));
  CHECK(says(refused({{"quant_method", "fp8"}, {"fmt", "e5m2"}}), {"field \"fmt\": expected \"e4m3\""}));
  CHECK(says(refused({{"quant_method", "gptq"}, {"bits", 4}}),
             {"field \"quant_method\": expected \"fp8\" or \"mxfp4\""}));
  CHECK(says(refused({{"bits", 4}}), {"quantization_config: field \"quant_method\" is missing"}));
  CHECK(says(refused({{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}),
             {"expected [128, 128], or null for one scale a matrix, got [64,64]"}));
  CHECK(says(refused({{"quant_method", "mxfp4"}, {"bits", 4}}), {"field \"bits\": expected none"}));
}
