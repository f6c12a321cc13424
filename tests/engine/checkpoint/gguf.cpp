// GGUF files that llama.cpp's converter made of tiny checkpoints (tests/goldens/make_gguf.py), against transformers' numbers
// for the originals; and files that nobody should have written.
#include "checkpoint/gguf.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/gguf_model.hpp"
#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/refusal.hpp"
#include "inference/generate.hpp"
#include "support/random.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

std::filesystem::path gguf(const std::string& name) {
  return golden_file("gguf") / (name + ".gguf");
}

std::vector<std::uint32_t> integers(const Tensor& t) {
  std::vector<std::uint32_t> out(t.elements());
  std::memcpy(out.data(), t.data, t.bytes);
  return out;
}

/// What is generated after some tokens, under a stack that keeps a part of the experts.
Generated generated(CpuModel& model, const std::vector<std::uint32_t>& tokens, std::uint64_t percent = 50) {
  RunnerOptions o;
  o.stack = "ferry";
  o.max_rows = 64;
  o.budget_bytes = model_shape(model.config(), model.store(), 1).all_bytes() * percent / 100;
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.token_prompts = {tokens};
  g.max_new_tokens = 32;
  g.prefill_chunk = 30;
  g.keep_logits = true;
  return generate(model, *runner, g);
}

void check_tokens(const std::string& file, const std::string& family) {
  CAPTURE(file);
  CpuModel model(gguf(file));
  for (const std::string& note : model.notes()) FAIL_CHECK(note);
  const Safetensors golden(golden_file("zoo") / family / "expected.safetensors");
  for (const std::string prompt : {"short", "long"}) {
    const Generated made = generated(model, integers(golden.at(prompt + ".input_ids")));
    CHECK(made.token_ids[0] == integers(golden.at(prompt + ".greedy")));
    const std::vector<float> logits = golden.at(prompt + ".logits").to_floats();
    float worst = 0;  // over the logits of the first token, which stand last there
    for (std::size_t v = 0; v < 258; ++v) {
      worst = std::max(worst, std::abs(made.logits[0][v] - logits[logits.size() - 258 + v]));
    }
    CHECK(worst <= 1e-4F);
  }
}

template <class T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string text(const std::string& s) {
  return number<std::uint64_t>(s.size()) + s;
}

/// A file with one tensor [2, 32] of Q8_0 at `offset`, and the metadata given.
std::string small_file(std::uint64_t offset = 0, const std::string& metadata = "", std::uint64_t entries = 0,
                       std::uint32_t type = 8, std::uint64_t columns = 32) {
  std::string out =
      "GGUF" + number<std::uint32_t>(3) + number<std::uint64_t>(1) + number<std::uint64_t>(entries) + metadata;
  out += text("w") + number<std::uint32_t>(2) + number<std::uint64_t>(columns) + number<std::uint64_t>(2) +
         number<std::uint32_t>(type) + number<std::uint64_t>(offset);
  out.resize((out.size() + 31) / 32 * 32);
  return out + std::string(68, 'x');
}

std::string refused(const std::string& content) {
  const TemporaryFolder folder;
  write_file(folder.path() / "m.gguf", content);
  return refusal("m.gguf", [&] { Gguf file(folder.path() / "m.gguf"); });
}

}  // namespace

TEST_CASE("models that llama.cpp converted generate what transformers generates from the originals") {
  check_tokens("mixtral-bf16", "mixtral");
  check_tokens("qwen2_moe-bf16", "qwen2_moe");
  check_tokens("deepseek_v2_lite-bf16", "deepseek_v2_lite");
  check_tokens("deepseek_v3-f16", "deepseek_v3");
  check_tokens("glm4_moe-bf16", "glm4_moe");
  check_tokens("dots1-bf16", "dots1");
  check_tokens("ernie4_5_moe-bf16", "ernie4_5_moe");
  check_tokens("gpt_oss-bf16", "gpt_oss");
  check_tokens("minimax_m2-bf16", "minimax_m2");
  check_tokens("hunyuan_v1_moe-bf16", "hunyuan_v1_moe");
  check_tokens("phimoe-bf16", "phimoe");
  check_tokens("qwen3_next-bf16", "qwen3_next");
  check_tokens("qwen3_5_moe-bf16", "qwen3_5_moe");
  check_tokens("deepseek_moe-bf16", "deepseek_moe");
  check_tokens("olmoe_as_gguf-bf16", "olmoe_as_gguf");
  check_tokens("llama4_as_gguf-bf16", "llama4_as_gguf");
  check_tokens("glm4_moe_lite-bf16", "glm4_moe_lite");
  check_tokens("exaone_moe-bf16", "exaone_moe");
  check_tokens("hy_v3-bf16", "hy_v3");
  check_tokens("qwen3_vl_moe-bf16", "qwen3_vl_moe");
  check_tokens("mistral4_as_gguf-bf16", "mistral4_as_gguf");
  check_tokens("solar_open-bf16", "solar_open");
  check_tokens("afmoe_as_gguf-bf16", "afmoe_as_gguf");
  check_tokens("lfm2_moe-bf16", "lfm2_moe");
  check_tokens("glm4v_moe-bf16", "glm4v_moe");
  check_tokens("gemma4-bf16", "gemma4");
  check_tokens("granitemoehybrid-bf16", "granitemoehybrid");
}

TEST_CASE("a model in several files is opened by any of them") {
  check_tokens("granitemoeshared-bf16-00001-of-00002", "granitemoeshared");
  check_tokens("granitemoeshared-bf16-00002-of-00002", "granitemoeshared");
}

TEST_CASE("blocks stay blocks, and compute what the floats that they stand for compute, bit for bit") {
  CpuModel model(gguf("qwen3_moe-q8_0"));
  CHECK(model.store().layout().dtype == DType::q8_0);
  CHECK(model.store().layout().bytes() == 3 * 64 * 32 / 32 * 34);
  // The same checkpoint as a folder of floats.
  const Gguf file(gguf("qwen3_moe-q8_0"));
  SafetensorsWriter writer;
  std::vector<std::pair<std::string, std::vector<float>>> kept;
  kept.reserve(1000);
  for (const auto& [name, t] : file.tensors()) {
    const std::vector<float> all = t.to_floats();
    const std::string folder = folder_name(name);
    const std::size_t experts = folder.find(".experts.");
    if (experts == std::string::npos) {
      kept.emplace_back(folder, all);
      continue;
    }
    const std::size_t each = all.size() / 8;
    for (std::size_t e = 0; e < 8; ++e) {
      kept.emplace_back(folder.substr(0, experts + 9) + std::to_string(e) + folder.substr(experts + 8),
                        std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(e * each),
                                           all.begin() + static_cast<std::ptrdiff_t>((e + 1) * each)));
    }
  }
  const Safetensors original(golden_file("zoo") / "qwen3_moe" / "model.safetensors");
  for (const auto& [name, values] : kept) {
    writer.add(name, "F32", original.at(name).shape,
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  const TemporaryFolder folder;
  write_file(folder.path() / "config.json", read_file(golden_file("zoo") / "qwen3_moe" / "config.json"));
  {
    OutputFile out(folder.path() / "model.safetensors");
    writer.commit(out, {});
  }
  CpuModel floats(folder.path());
  const std::vector<std::uint32_t> tokens{256, 84, 104, 101, 32};
  const Generated a = generated(model, tokens), b = generated(floats, tokens);
  CHECK(a.token_ids == b.token_ids);
  CHECK(a.logits == b.logits);
}

namespace {

enum class Experts { as_they_are, gates_with_ups, one_by_one, and_attention_in_one };

/// The same model with all of its numbers as floats.
std::string with_floats(const std::filesystem::path& path, Experts experts = Experts::as_they_are) {
  const std::string content = read_file(path);
  const Gguf file(path);
  std::size_t end = content.size();  // of the metadata
  std::string tensors, data;
  std::uint64_t count = 0;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape, const float* values) {
    ++count;
    tensors += text(name) + number(static_cast<std::uint32_t>(shape.size()));
    std::uint64_t all = 1;
    for (std::size_t d = shape.size(); d > 0; --d) {
      tensors += number(shape[d - 1]);
      all *= shape[d - 1];
    }
    tensors += number<std::uint32_t>(0) + number<std::uint64_t>(data.size());
    data.append(reinterpret_cast<const char*>(values), all * sizeof(float));
    data.resize((data.size() + 31) / 32 * 32);
  };
  for (const auto& [own_name, t] : file.tensors()) {
    end = std::min(end, content.find(text(own_name)));
    const std::vector<float> all = t.to_floats();
    const std::size_t at = own_name.find("_exps");
    if (const std::size_t q = own_name.find(".attn_q."); experts == Experts::and_attention_in_one) {
      if (own_name.find(".attn_k.") != std::string::npos || own_name.find(".attn_v.") != std::string::npos) continue;
      std::vector<float> together = all;
      std::vector<std::uint64_t> shape = t.shape;
      for (const char* other : {".attn_k.", ".attn_v."}) {
        if (q == std::string::npos) break;
        const Tensor& more = file.at(std::string(own_name).replace(q, 8, other));
        const std::vector<float> values = more.to_floats();
        together.insert(together.end(), values.begin(), values.end());
        shape[0] += more.shape[0];
      }
      add(q == std::string::npos ? own_name : std::string(own_name).replace(q, 8, ".attn_qkv."), shape,
          together.data());
      continue;
    }
    if (at == std::string::npos || experts == Experts::as_they_are) {
      add(own_name, t.shape, all.data());
      continue;
    }
    const std::size_t each = all.size() / t.shape[0];
    if (experts == Experts::one_by_one) {
      for (std::size_t e = 0; e < t.shape[0]; ++e) {
        add(std::string(own_name).replace(at, 5, "." + std::to_string(e)), {t.shape[1], t.shape[2]}, &all[e * each]);
      }
    } else if (own_name.find("_gate_") != std::string::npos) {
      const std::vector<float> other = file.at(std::string(own_name).replace(at - 4, 4, "up")).to_floats();
      std::vector<float> both;
      for (std::size_t e = 0; e < t.shape[0]; ++e) {
        both.insert(both.end(), &all[e * each], &all[e * each] + each);
        both.insert(both.end(), &other[e * each], &other[e * each] + each);
      }
      add(std::string(own_name).replace(at, 0, "_up"), {t.shape[0], 2 * t.shape[1], t.shape[2]}, both.data());
    } else if (own_name.find("_up_") == std::string::npos) {
      add(own_name, t.shape, all.data());
    }
  }
  std::string out = content.substr(0, 8) + number(count) + content.substr(16, end - 16) + tensors;
  out.resize((out.size() + 31) / 32 * 32);
  return out + data;
}

}  // namespace

TEST_CASE("what llama.cpp's quantiser mixed computes what the floats that it stands for compute, bit for bit") {
  // Each file with the types that it contains: tests/goldens/make_gguf_types.py.
  const std::pair<const char*, std::vector<DType>> files[] = {
      {"q2_k", {DType::f32, DType::q2_k, DType::q3_k, DType::q4_0, DType::q6_k}},
      {"q3_k_m", {DType::f32, DType::q3_k, DType::q4_k, DType::q5_0, DType::q5_k, DType::q6_k}},
      {"iq4_xs", {DType::f32, DType::iq4_nl, DType::iq4_xs, DType::q6_k}},
      {"q2_k-96", {DType::f32, DType::q2_k, DType::q3_k, DType::q4_0, DType::q6_k}},
      {"q4_k_m-96", {DType::f32, DType::q4_k, DType::q5_0, DType::q6_k, DType::q8_0}},
      {"q5_k_m-96", {DType::f32, DType::q5_1, DType::q5_k, DType::q6_k, DType::q8_0}},
      {"q4_1-96", {DType::f32, DType::q4_1, DType::q6_k}},
  };
  for (const auto& [name, types] : files) {
    const std::string label = name;  // structured bindings cannot be captured
    CAPTURE(label);
    const std::filesystem::path path = gguf("types-" + label);
    const std::vector<DType> expected = types;
    const Gguf file(path);
    for (const auto& [tensor, t] : file.tensors()) {
      const std::string own = tensor;
      CAPTURE(own);
      CHECK(std::count(expected.begin(), expected.end(), t.dtype) == 1);
    }
    const TemporaryFolder folder;
    write_file(folder.path() / "floats.gguf", with_floats(path));
    CpuModel stored(path), floats(folder.path() / "floats.gguf");
    const std::vector<std::uint32_t> tokens{1, 20, 3, 40, 5};
    const Generated a = generated(stored, tokens, 75), b = generated(floats, tokens, 75);
    CHECK(a.token_ids == b.token_ids);
    CHECK(a.logits == b.logits);
  }
}

TEST_CASE("experts' gates and ups may be one tensor, and experts a tensor each") {
  const TemporaryFolder folder;
  for (const char* name : {"mixtral-bf16", "qwen3_moe-q8_0", "deepseek_v2_lite-bf16"}) {
    CAPTURE(name);
    const auto made = [&](Experts experts) {
      write_file(folder.path() / "m.gguf", with_floats(gguf(name), experts));
      CpuModel model(folder.path() / "m.gguf");
      CHECK(model.notes().empty());
      return generated(model, {256, 84, 104, 101, 32});
    };
    const Generated expected = made(Experts::as_they_are);
    for (const Experts experts : {Experts::gates_with_ups, Experts::one_by_one}) {
      const Generated got = made(experts);
      CHECK(got.token_ids == expected.token_ids);
      CHECK(got.logits == expected.logits);
    }
  }
}

TEST_CASE("queries, keys and values may be one tensor, with their biases, too") {
  const TemporaryFolder folder;
  for (const char* name : {"mixtral-bf16", "qwen2_moe-bf16", "qwen3_moe-q8_0", "gpt_oss-bf16"}) {
    CAPTURE(std::string(name));
    const auto made = [&](Experts how) {
      write_file(folder.path() / "m.gguf", with_floats(gguf(name), how));
      CpuModel model(folder.path() / "m.gguf");
      CHECK(model.notes().empty());
      return generated(model, {256, 84, 104, 101, 32});
    };
    CHECK(made(Experts::and_attention_in_one).logits == made(Experts::as_they_are).logits);
  }
}

TEST_CASE("the gate of a shared expert may be a matrix of one row, or the row") {
  for (const std::string& shape : {number<std::uint32_t>(1) + number<std::uint64_t>(8),
                                   number<std::uint32_t>(2) + number<std::uint64_t>(8) + number<std::uint64_t>(1)}) {
    std::string file = "GGUF" + number<std::uint32_t>(3) + number<std::uint64_t>(1) + number<std::uint64_t>(0) +
                       text("blk.0.ffn_gate_inp_shexp.weight") + shape + number<std::uint32_t>(0) +
                       number<std::uint64_t>(0);
    file.resize((file.size() + 31) / 32 * 32 + 32);
    const TemporaryFolder folder;
    write_file(folder.path() / "m.gguf", file);
    const Gguf read(folder.path() / "m.gguf");
    CHECK(read.at("blk.0.ffn_gate_inp_shexp.weight").shape == std::vector<std::uint64_t>{1, 8});
  }
}

TEST_CASE("GGUF files that are not are refused with what is wrong") {
  CHECK(refused(small_file()).empty());
  CHECK(says(refused("GGUX"), {"does not begin with \"GGUF\""}));
  CHECK(says(refused("GG"), {"it ends within its first 4 bytes"}));
  CHECK(says(refused("GGUF" + number<std::uint32_t>(1) + std::string(16, '\0')), {"version 1, expected 2 or 3"}));
  CHECK(says(refused("GGUF" + number<std::uint32_t>(3) + number(~std::uint64_t{0}) + number<std::uint64_t>(0)),
             {"expected at most 1048576"}));
  CHECK(says(refused(small_file(32)), {"lies at 32 of 68 bytes"}));
  CHECK(says(refused(small_file(7)), {"expected a multiple of 32"}));
  CHECK(says(refused(small_file(0, "", 0, 99)), {"\"w\" is of type 99"}));
  CHECK(says(refused(small_file(0, "", 0, 40)), {"\"w\" is NVFP4, which is not supported"}));
  CHECK(says(refused(small_file(0, "", 0, 31)), {"\"w\" is Q4_0_4_4, which is not supported"}));
  CHECK(says(refused(small_file(0, "", 0, 8, 33)), {"Q8_0 with 33 columns, expected a multiple of 32"}));
  CHECK(says(refused(small_file(0, "", 0, 8, 0)), {"dimension 0 is 0"}));
  CHECK(says(refused(small_file(0, "", 0, 8, std::uint64_t{1} << 60U)), {"2^48 elements"}));
  const std::string key = text("k"), flag = number<std::uint32_t>(7) + std::string(1, '\1');
  CHECK(refused(small_file(0, key + flag, 1)).empty());
  CHECK(says(refused(small_file(0, key + flag + key + flag, 2)), {"\"k\" stands twice"}));
  CHECK(says(refused(small_file(0, key + number<std::uint32_t>(77), 1)), {"of type 77"}));
  const auto list = [&](std::uint32_t kind, std::uint64_t count) {
    return key + number<std::uint32_t>(9) + number(kind) + number(count);
  };
  CHECK(says(refused(small_file(0, list(4, ~std::uint64_t{0}), 1)), {"a list of 18446744073709551615"}));
  CHECK(says(refused(small_file(0, list(9, 1), 1)), {"a list of type 9"}));
  CHECK(says(refused(small_file(0, key + number<std::uint32_t>(8) + number(~std::uint64_t{0}), 1)),
             {"where 119 are left"}));
  const std::string alignment = text("general.alignment") + number<std::uint32_t>(4) + number<std::uint32_t>(0);
  CHECK(says(refused(small_file(0, alignment, 1)), {"general.alignment is 0"}));
}

TEST_CASE("models that are not supported are refused by name") {
  const auto model = [](const std::string& architecture, const std::string& more = "", std::uint64_t entries = 0) {
    const TemporaryFolder folder;
    const std::string named = text("general.architecture") + number<std::uint32_t>(8) + text(architecture);
    write_file(folder.path() / "m.gguf", small_file(0, named + more, 1 + entries));
    return refusal("m.gguf", [&] { static_cast<void>(read_model_config(folder.path() / "m.gguf")); });
  };
  CHECK(says(model("mamba"), {"general.architecture is \"mamba\", expected one of llama, qwen2moe"}));
  CHECK(says(model("llama"), {"it has no experts"}));
  const auto entry = [](const std::string& name, std::uint32_t value) {
    return text(name) + number<std::uint32_t>(4) + number(value);
  };
  std::string all = entry("llama.expert_count", 8);
  std::uint64_t entries = 1;
  CHECK(says(model("llama", all, entries), {"\"llama.block_count\": expected a number of layers"}));
  for (const char* name : {"block_count", "embedding_length", "attention.head_count", "context_length"}) {
    if (entries > 1) CHECK(says(model("llama", all, entries), {std::string("llama.") + name + " is missing"}));
    all += entry(std::string("llama.") + name, 4);
    ++entries;
  }
  CHECK(says(model("llama", all, entries), {"llama.attention.layer_norm_rms_epsilon is missing"}));
  all += text("llama.attention.layer_norm_rms_epsilon") + number<std::uint32_t>(6) + number(1e-5F);
  ++entries;
  CHECK(says(model("llama", all, entries), {"\"token_embd.weight\" is missing"}));
  const TemporaryFolder folder;
  std::filesystem::copy_file(gguf("granitemoeshared-bf16-00001-of-00002"), folder.path() / "a-00001-of-00002.gguf");
  CHECK(says(refusal("a-00002-of-00002.gguf", [&] { Checkpoint c(folder.path() / "a-00001-of-00002.gguf"); }),
             {"cannot open"}));
  std::filesystem::rename(folder.path() / "a-00001-of-00002.gguf", folder.path() / "a.gguf");
  CHECK(says(refusal("a.gguf", [&] { Checkpoint c(folder.path() / "a.gguf"); }), {"ends with 00001-of-00002.gguf"}));
}

namespace {

std::string whole(const std::string& name, std::uint32_t value) {
  return text(name) + number<std::uint32_t>(4) + number(value);
}
std::string real(const std::string& name, float value) {
  return text(name) + number<std::uint32_t>(6) + number(value);
}

std::string flag(const std::string& name, bool value) {
  return text(name) + number<std::uint32_t>(7) + std::string(1, value ? '\1' : '\0');
}

/// Reads an architecture's metadata: those of a small model of 8 heads of 4 columns, and `more`. Its tensors, of F32, are the
/// embeddings [4, 32] and those given.
struct Described {
  std::string arch;
  std::vector<std::string> more;
  std::vector<std::pair<std::string, std::vector<float>>> tensors;
  std::uint32_t experts = 4;
  float rope_base = 100;       ///< 0: none is said
  std::uint32_t qkv_rows = 0;  ///< of a first layer's queries, keys and values in one; 0: they are not there

  [[nodiscard]] ModelConfig read() const {
    const TemporaryFolder folder;
    write_file(folder.path() / "m.gguf", file());
    return read_model_config(folder.path() / "m.gguf");
  }
  [[nodiscard]] std::string refusal() const {
    return test::refusal("m.gguf", [&] { static_cast<void>(read()); });
  }

 private:
  [[nodiscard]] std::string file() const {
    std::vector<std::string> entries = more;
    entries.push_back(text("general.architecture") + number<std::uint32_t>(8) + text(arch));
    for (const auto& [name, value] :
         {std::pair{".expert_count", experts}, std::pair{".expert_used_count", 2U}, std::pair{".block_count", 4U},
          std::pair{".embedding_length", 32U}, std::pair{".attention.head_count", 8U},
          std::pair{".expert_feed_forward_length", 16U}, std::pair{".feed_forward_length", 16U},
          std::pair{".context_length", 64U}, std::pair{".interleave_moe_layer_step", 1U}}) {
      const std::string key = text(arch + name);
      const bool said = std::any_of(more.begin(), more.end(), [&](const auto& m) { return m.starts_with(key); });
      if (!said && (arch == "llama4" || std::string(name) != ".interleave_moe_layer_step")) {
        entries.push_back(whole(arch + name, value));
      }
    }
    entries.push_back(real(arch + ".attention.layer_norm_rms_epsilon", 1e-5F));
    if (arch == "gpt-oss") entries.push_back(whole(arch + ".attention.sliding_window", 128));
    if (rope_base > 0) entries.push_back(real(arch + ".rope.freq_base", rope_base));
    std::string out = "GGUF" + number<std::uint32_t>(3) +
                      number<std::uint64_t>(1 + tensors.size() + (qkv_rows > 0 ? 1 : 0)) +
                      number<std::uint64_t>(entries.size());
    for (const std::string& e : entries) out += e;
    out += text("token_embd.weight") + number<std::uint32_t>(2) + number<std::uint64_t>(32) + number<std::uint64_t>(4) +
           number<std::uint32_t>(0) + number<std::uint64_t>(0);
    std::string data(512, '\0');
    if (qkv_rows > 0) {
      out += text("blk.0.attn_qkv.weight") + number<std::uint32_t>(2) + number<std::uint64_t>(32) +
             number<std::uint64_t>(qkv_rows) + number<std::uint32_t>(0) + number<std::uint64_t>(data.size());
      data.resize(data.size() + std::size_t{qkv_rows} * 128);
    }
    for (const auto& [name, values] : tensors) {
      const bool matrix = name.find("shexp") != std::string::npos;  // of 32 columns
      out += text(name) + number<std::uint32_t>(matrix ? 2 : 1);
      if (matrix) out += number<std::uint64_t>(32);
      out += number<std::uint64_t>(matrix ? values.size() / 32 : values.size()) + number<std::uint32_t>(0) +
             number<std::uint64_t>(data.size());
      for (const float v : values) data += number(v);
      data.resize((data.size() + 31) / 32 * 32);
    }
    out.resize((out.size() + 31) / 32 * 32);
    return out + data;
  }
};

// Frequencies are computed in single precision.
constexpr double tenth = 0.1F;

/// Layers with and without a window have different heads; a tensor of its own says which columns turn.
void check_gemma4() {
  const auto list = [](const std::string& name, std::uint32_t type, const std::vector<std::uint32_t>& values) {
    std::string out =
        text("gemma4." + name) + number<std::uint32_t>(9) + number(type) + number<std::uint64_t>(values.size());
    for (const std::uint32_t v : values) out += type == 7 ? std::string(1, static_cast<char>(v)) : number(v);
    return out;
  };
  const std::string pattern = "attention.sliding_window_pattern", window = "attention.sliding_window";
  const auto described = [&](const std::vector<std::uint32_t>& heads, const std::string& more = "",
                             const std::string& without = "") {
    Described d{"gemma4", {}, {{"rope_freqs.weight", {1, 1e30F, 1e30F, 1e30F}}}};
    for (const auto& [name, entry] :
         {std::pair{pattern, list(pattern, 7, {1, 0, 1, 0})},
          std::pair{std::string("attention.head_count_kv"), list("attention.head_count_kv", 4, heads)},
          std::pair{window, whole("gemma4." + window, 8)},
          std::pair{std::string("attention.key_length"), whole("gemma4.attention.key_length", 8)},
          std::pair{std::string("attention.key_length_swa"), whole("gemma4.attention.key_length_swa", 4)},
          std::pair{std::string("rope.freq_base_swa"), real("gemma4.rope.freq_base_swa", 100)}}) {
      if (name != without) d.more.push_back(entry);
    }
    if (!more.empty()) d.more.push_back(more);
    if (without == "rope_freqs") d.tensors.clear();
    if (without == "rope.freq_base") d.rope_base = 0;
    return d;
  };
  const ModelConfig c = described({4, 2, 4, 2}, real("gemma4.final_logit_softcapping", 30)).read();
  CHECK(c.layer[0].window == 8);
  CHECK(c.layer[0].head_dim == 4);
  CHECK(c.layer[0].kv_heads == 4);
  CHECK_FALSE(c.layer[0].keys_are_values);
  CHECK(c.layer[3].window == 0);
  CHECK(c.layer[3].head_dim == 8);
  CHECK(c.layer[3].kv_heads == 2);
  CHECK(c.layer[3].keys_are_values);
  CHECK(c.logit_cap == 30);
  CHECK(c.window_rope->frequency == std::vector<double>{1, tenth});
  CHECK(c.rope.frequency[0] == 1);
  CHECK(c.rope.frequency[1] < 1e-29);
  // There are scales where the file has their tensors.
  CHECK(c.names.expert_scale.empty());
  CHECK(c.names.layer_scale.empty());
  Described scaled = described({4, 2, 4, 2});
  scaled.tensors.push_back({"blk.1.ffn_down_exps.scale", std::vector<float>(4)});
  scaled.tensors.push_back({"blk.1.layer_output_scale.weight", {1}});
  CHECK(scaled.read().names.expert_scale == "mlp.experts.down_proj.scale");
  CHECK(scaled.read().names.layer_scale == "layer_output_scale.weight");
  // What is absent gets llama.cpp's value, or is refused as llama.cpp refuses it.
  CHECK(described({4, 2, 4, 2}, "", "rope.freq_base").read().rope.theta == 10000);
  CHECK(described({4, 2, 4, 2}, "", "rope.freq_base_swa").read().window_rope->theta == 10000);
  CHECK(described({4, 2, 4, 2}, real("gemma4.final_logit_softcapping", 0)).read().logit_cap == 0);
  CHECK(described({4, 2, 4, 2}, text("gemma4.rope.scaling.type") + number<std::uint32_t>(8) + text("none"))
            .read()
            .rope.scale == 1);
  for (const std::string& needed : {pattern, window, std::string("attention.key_length"),
                                    std::string("attention.key_length_swa"), std::string("attention.head_count_kv")}) {
    CHECK(says(described({4, 2, 4, 2}, "", needed).refusal(), {"gemma4 without " + needed + " is not supported"}));
  }
  CHECK(
      says(described({4, 2, 4, 1}).refusal(), {"\"per_layer_config\"", "the same heads for all layers with a window"}));
  CHECK(says(described({4, 2}).refusal(), {"gemma4.attention.head_count_kv", "one for each layer"}));
  CHECK(says(described({4, 2, 4, 2}, "", "rope_freqs").refusal(), {"tensor \"rope_freqs.weight\" is missing"}));
  CHECK(says(described({4, 2, 4, 2}, list(pattern, 7, {1, 0, 1, 1}), pattern).refusal(),
             {pattern, "false for the last layer"}));
  for (const std::string& entry :
       {whole("gemma4.rope.dimension_count_swa", 2), whole("gemma4.attention.value_length_swa", 2)}) {
    CHECK(says(described({4, 2, 4, 2}, entry).refusal(), {"expected 4, the columns of a head's keys"}));
  }
  CHECK(
      says(described({4, 2, 4, 2}, whole("gemma4.attention.value_length", 4)).refusal(), {"expected 8, the columns"}));
  CHECK(
      says(described({4, 2, 4, 2}, whole("gemma4.attention.shared_kv_layers", 2)).refusal(), {"num_kv_shared_layers"}));
  CHECK(says(described({4, 2, 4, 2}, whole("gemma4.embedding_length_per_layer_input", 256)).refusal(),
             {"hidden_size_per_layer_input"}));
  CHECK(says(
      described({4, 2, 4, 2}, text("gemma4.rope.scaling.type") + number<std::uint32_t>(8) + text("linear")).refusal(),
      {"gemma4.rope.scaling.type", "expected none"}));
}

}  // namespace

TEST_CASE("frequencies of GGUF are divided by the tensor that its converter writes for Llama 3's rope") {
  const std::vector<double> plain = Described{"llama", {}, {}}.read().rope.frequency;
  CHECK(plain == std::vector<double>{1, tenth});
  const auto with = [](const std::vector<float>& values) {
    return Described{"llama", {}, {{"rope_freqs.weight", values}}};
  };
  CHECK(with({1, 8}).read().rope.frequency == std::vector<double>{1, tenth / 8});
  CHECK(says(with({1, 8, 8}).refusal(), {"\"rope_freqs.weight\" is F32 [3], expected F32 [2]"}));
  CHECK(says(with({1, 0}).refusal(), {"\"rope_freqs.weight\" has 0 at [1], expected a number above 0"}));
  CHECK(says(with({std::nanf(""), 1}).refusal(), {"expected a number above 0"}));
}

TEST_CASE("LongRoPE of GGUF: two tensors divide the frequencies, and the metadata has the factor") {
  for (const std::string arch : {"phimoe", "llama"}) {
    CAPTURE(arch);
    Described phi{
        arch,
        {whole(arch + ".rope.scaling.original_context_length", 16), real(arch + ".rope.scaling.attn_factor", 1.25F)},
        {{"rope_factors_short.weight", {1, 2}}, {"rope_factors_long.weight", {4, 8}}}};
    const Rope rope = phi.read().rope;
    CHECK(rope.frequency == std::vector<double>{1, tenth / 2});
    CHECK(rope.long_frequency == std::vector<double>{1.0 / 4, tenth / 8});
    CHECK(rope.long_from == 16);
    CHECK(rope.scale == 1.25);
    CHECK(rope.long_scale == 1.25);
    phi.more.pop_back();
    CHECK(phi.read().rope.long_scale == 1);
    // What would stretch positions on top of them is refused by name.
    phi.more.push_back(real(arch + ".rope.scaling.factor", 1));
    CHECK(phi.read().rope.frequency == rope.frequency);
    const std::string type = text(arch + ".rope.scaling.type") + number<std::uint32_t>(8);
    for (const auto& [entry, said] :
         {std::pair{real(arch + ".rope.scaling.factor", 4),
                    std::string(".rope.scaling.factor\": expected none, 0 or 1")},
          std::pair{real(arch + ".rope.scale_linear", 4), std::string(".rope.scale_linear\": expected none, 0 or 1")},
          std::pair{type + text("yarn"), std::string(".rope.scaling.type\": expected longrope or none")},
          std::pair{type + text("linear"), std::string(".rope.scaling.type\": expected longrope or none")}}) {
      phi.more.back() = entry;
      CHECK(says(phi.refusal(), {arch + said}));
    }
    phi.more.back() = type + text("longrope");
    CHECK(phi.read().rope.long_frequency == rope.long_frequency);
    phi.tensors.push_back({"rope_freqs.weight", {1, 2}});
    CHECK(says(phi.refusal(), {"\"rope_freqs.weight\": expected none beside rope_factors_short.weight"}));
    phi.tensors.pop_back();
    phi.tensors[1].second = {4, 8, 8};
    CHECK(says(phi.refusal(), {"\"long_factor\": expected a list of 2 numbers above 0"}));
    phi.tensors.pop_back();
    CHECK(says(phi.refusal(), {"\"rope_factors_long.weight\": expected a vector of F32"}));
  }
}

TEST_CASE("metadata of GGUF that says what is computed is read or refused, and other is named") {
  const auto says_of = [](const std::string& arch, const std::string& entry, const std::string& what) {
    return says(Described{arch, {entry}, {}}.refusal(), {what});
  };
  CHECK(says_of("llama", real("llama.rope.scaling.attn_factor", 2), "\"llama.rope.scaling.attn_factor\""));
  CHECK(says_of("llama", real("llama.attention.temperature_scale", 0.1F), "\"llama.attention.temperature_scale\""));
  CHECK(says_of("qwen3moe", real("qwen3moe.final_logit_softcapping", 30), "final_logit_softcapping"));
  CHECK(says_of("qwen3moe", real("qwen3moe.embedding_scale", 12), "embedding_scale"));
  CHECK(says_of("llama", whole("llama.expert_gating_func", 2), "\"llama.expert_gating_func\": expected 1"));
  CHECK(says_of("dots1", whole("dots1.expert_gating_func", 1), "\"dots1.expert_gating_func\": expected 2"));
  CHECK(says_of("gemma4", whole("gemma4.block_count", 0), "\"gemma4.block_count\": expected a number of layers"));
  CHECK(says_of("llama", real("llama.block_count", 1), "\"llama.block_count\": expected a number of layers"));
  CHECK(says_of("llama", whole("llama.nextn_predict_layers", 4), "\"llama.nextn_predict_layers\": expected fewer"));
  CHECK(says_of("llama", text("llama.nextn_predict_layers") + number<std::uint32_t>(8) + text("x"), "expected fewer"));
  // Values that ask for a rule that is not computed.
  CHECK(says_of("llama", real("llama.expert_weights_scale", 3), "\"llama.expert_weights_scale\": expected 1"));
  CHECK(says_of("llama", flag("llama.expert_weights_norm", false), "\"llama.expert_weights_norm\": expected true"));
  CHECK(says_of("llama", whole("llama.leading_dense_block_count", 1), "leading_dense_block_count\": expected 0"));
  CHECK(says_of("llama", whole("llama.expert_group_used_count", 3), "expert_group_used_count\": expected 1"));
  CHECK(says_of("llama", whole("llama.vocab_size", 9), "\"llama.vocab_size\": expected 4, as it is computed"));
  CHECK(says_of("llama", whole("llama.attention.value_length", 3), "value_length\": expected 4"));
  CHECK(says_of("llama", whole("llama.expert_shared_count", 5), "\"llama.expert_shared_count\": expected 0"));
  const Described grouped{"deepseek2",
                          {text("deepseek2.expert_group_count") + number<std::uint32_t>(8) + text("two"),
                           whole("deepseek2.attention.key_length", 8), whole("deepseek2.rope.dimension_count", 4),
                           whole("deepseek2.attention.value_length", 4), whole("deepseek2.attention.kv_lora_rank", 8)},
                          {}};
  CHECK(says(grouped.refusal(), {"field \"n_group\": expected a whole number"}));
  for (const std::string& harmless :
       {real("llama.rope.scaling.attn_factor", 1), real("llama.logit_scale", 0), whole("llama.expert_gating_func", 1),
        whole("llama.vocab_size", 4), flag("llama.expert_weights_norm", true),
        whole("llama.leading_dense_block_count", 0), real("llama.expert_weights_scale", 0),
        whole("llama.attention.sliding_window", 8)}) {
    CHECK(Described{"llama", {harmless}, {}}.read().unknown.empty());
  }
  CHECK(Described{"llama", {whole("llama.moon_phase", 3)}, {}}.read().unknown ==
        std::vector<std::string>{"llama.moon_phase"});
  // llama.cpp takes a factor without a type for linear scaling, also under its older name.
  for (const char* name : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    CHECK(Described{"llama", {real(name, 4)}, {}}.read().rope.frequency == std::vector<double>{0.25, tenth / 4});
  }
}

TEST_CASE("what GGUF files leave out is what llama.cpp takes, and not what config.json's absence means") {
  // Of heads of 4 columns.
  const auto turned = [](const std::string& arch, const std::vector<std::string>& more) {
    return Described{arch, more, {}}.read().rope.width;
  };
  CHECK(turned("glm4moe", {whole("glm4moe.rope.dimension_count", 2)}) == 2);
  CHECK(turned("glm4moe", {whole("glm4moe.rope.dimension_count", 4)}) == 4);
  CHECK(turned("glm4moe", {}) == 4);
  CHECK(turned("minimax-m2", {whole("minimax-m2.rope.dimension_count", 2)}) == 2);

  const std::string norm = number<std::uint32_t>(7) + std::string(1, '\1');
  for (const std::string arch : {"glm4moe", "dots1"}) {
    CHECK_FALSE(Described{arch, {}, {}}.read().renormalise);
    CHECK(Described{arch, {text(arch + ".expert_weights_norm") + norm}, {}}.read().renormalise);
    CHECK(Described{arch, {}, {}}.read().routed_scale == 1);
  }
  const std::vector<std::string> latent = {
      whole("deepseek2.attention.key_length", 8), whole("deepseek2.rope.dimension_count", 4),
      whole("deepseek2.attention.value_length", 4), whole("deepseek2.attention.kv_lora_rank", 8),
      whole("deepseek2.expert_gating_func", 2)};
  const ModelConfig v3 = Described{"deepseek2", latent, {}}.read();
  CHECK(v3.architecture_name == "DeepseekV3ForCausalLM");
  CHECK_FALSE(v3.renormalise);
  CHECK(v3.routed_scale == 1);
  CHECK(v3.gate.groups == 1);
  CHECK(v3.moe_layer_count() == 4);
  CHECK(v3.shared_width == 0);
  // Groups, factors and scales of 0 mean none. Groups that an architecture does not choose from are refused.
  for (const std::string arch : {"llama", "qwen3moe", "glm4moe", "dots1", "gpt-oss"}) {
    CAPTURE(arch);
    CHECK(Described{arch, {whole(arch + ".expert_group_count", 0)}, {}}.read().gate.groups == 1);
    CHECK(Described{arch, {real(arch + ".expert_weights_scale", 0)}, {}}.read().routed_scale == 1);
    const Described groups{
        arch, {whole(arch + ".expert_group_count", 2), whole(arch + ".expert_group_used_count", 1)}, {}};
    if (arch == "glm4moe" || arch == "dots1") {
      CHECK(groups.read().gate.groups == 2);
    } else {
      CHECK(says(groups.refusal(), {arch + ".expert_group_count", "expected 1, this architecture's"}));
    }
    if (arch == "gpt-oss") continue;
    const std::string linear = text(arch + ".rope.scaling.type") + number<std::uint32_t>(8) + text("linear");
    CHECK(Described{arch, {linear}, {}}.read().rope.frequency == Described{arch, {}, {}}.read().rope.frequency);
  }
  const Described odd{"qwen3moe", {whole("qwen3moe.attention.head_count_kv", 2)}, {}, 4, 100, 47};
  CHECK(says(odd.refusal(), {"\"blk.0.attn_qkv.weight\"", "8 heads of queries and 2 of keys and of values, 4 each"}));
  const ModelConfig oss = Described{"gpt-oss", {}, {}}.read();
  CHECK(oss.rope.frequency == std::vector<double>{1, tenth});
  CHECK(oss.rope.scale == 1);

  for (const std::string arch : {"gpt-oss", "llama", "ernie4_5-moe"}) {
    CHECK(Described{arch, {}, {}, 4, 0}.read().rope.theta == 10000);
  }
  CHECK(Described{"deepseek", {real("deepseek.expert_weights_scale", 2.5F)}, {}}.read().routed_scale == 2.5);
  CHECK(Described{"deepseek", {real("deepseek.expert_weights_scale", 0)}, {}}.read().routed_scale == 1);
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK(says(Described{"deepseek", {real("deepseek.expert_weights_scale", infinite)}, {}}.refusal(),
             {"a finite number"}));
  CHECK(Described{"granitemoe", {}, {}}.read().attention_scale == 0.5);
  const auto yarn = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {text("qwen3moe.rope.scaling.type") + number<std::uint32_t>(8) + text("yarn"),
                                    real("qwen3moe.rope.scaling.factor", 4),
                                    whole("qwen3moe.rope.scaling.original_context_length", 16)};
    all.insert(all.end(), more.begin(), more.end());
    return Described{"qwen3moe", all, {}};
  };
  CHECK(yarn({}).read().rope.scale == doctest::Approx(0.1 * std::log(4.0) + 1));
  const double usual = yarn({}).read().rope.scale;  // llama.cpp does not use it
  CHECK(yarn({real("qwen3moe.rope.scaling.yarn_attn_factor", 1)}).read().rope.scale == usual);
  CHECK(
      says(yarn({real("qwen3moe.rope.scaling.yarn_attn_factor", 2)}).refusal(), {"yarn_attn_factor\": expected none"}));
  CHECK(says(yarn({real("qwen3moe.rope.scaling.yarn_ext_factor", 0)}).refusal(), {"yarn_ext_factor\": expected none"}));

  // Without a factor, or with 0, nothing is stretched, whatever the lengths are. Other types are refused.
  const auto stretched = [&](const std::string& type, const std::vector<std::string>& more) {
    std::vector<std::string> all = {text("qwen3moe.rope.scaling.type") + number<std::uint32_t>(8) + text(type),
                                    whole("qwen3moe.rope.scaling.original_context_length", 16)};
    all.insert(all.end(), more.begin(), more.end());
    return Described{"qwen3moe", all, {}};
  };
  const std::vector<double> plain = Described{"qwen3moe", {}, {}}.read().rope.frequency;
  CHECK(stretched("yarn", {}).read().rope.frequency == plain);
  CHECK(stretched("yarn", {real("qwen3moe.rope.scaling.factor", 0)}).read().rope.frequency == plain);
  CHECK(stretched("yarn", {}).read().rope.scale == 1);
  CHECK(says(stretched("dynamic", {}).refusal(), {"rope.scaling.type\": expected none, linear, yarn or longrope"}));
  // Only latent attention has this multiplier.
  CHECK(says(yarn({real("qwen3moe.rope.scaling.yarn_log_multiplier", 0.1F)}).refusal(),
             {"yarn_log_multiplier\": expected none"}));
  // How many groups are kept cannot be guessed.
  CHECK(says(Described{"glm4moe", {whole("glm4moe.expert_group_count", 2)}, {}}.refusal(),
             {"glm4moe.expert_group_used_count\": expected how many of the groups are kept"}));

  // For Hunyuan 3 the tensors say which layers have no experts, and whether a bias takes part in the choice.
  const ModelConfig hy =
      Described{
          "hy_v3", {text("hy_v3.expert_weights_norm") + norm}, {{"blk.1.ffn_gate.weight", std::vector<float>(16)}}}
          .read();
  CHECK(hy.moe_layers == std::vector<std::uint32_t>{0, 2, 3});
  CHECK(hy.names.choice_bias.empty());
  CHECK(hy.routed_scale == 1);
  const ModelConfig everywhere = Described{"exaone-moe", {}, {}}.read();
  CHECK(everywhere.layer[0].window == 0);
  CHECK(everywhere.layer[3].turns);
  CHECK_FALSE(
      Described{"hy_v3", {text("hy_v3.expert_weights_norm") + norm}, {{"blk.1.exp_probs_b", std::vector<float>(4)}}}
          .read()
          .names.choice_bias.empty());
  // For Trinity llama.cpp assumes that every fourth layer has no window, and that weights are not divided by their sum.
  const std::string divided = text("afmoe.expert_weights_norm") + norm,
                    window = whole("afmoe.attention.sliding_window", 8);
  const ModelConfig trinity = Described{"afmoe", {divided, window, real("afmoe.expert_weights_scale", 0)}, {}}.read();
  CHECK(trinity.layer[2].window == 8);
  CHECK(trinity.layer[2].turns);
  CHECK(trinity.layer[3].window == 0);
  CHECK_FALSE(trinity.layer[3].turns);
  CHECK(trinity.routed_scale == 1);
  CHECK(trinity.embedding_scale == doctest::Approx(std::sqrt(trinity.hidden)));
  CHECK(says(Described{"afmoe", {divided}, {}}.refusal(), {"afmoe without attention.sliding_window"}));
  CHECK(says(Described{"afmoe", {window}, {}}.refusal(), {"\"route_norm\": expected true"}));
  // LFM2's layers with a convolution have no heads of keys.
  const auto heads = [](const std::vector<std::uint32_t>& of_layers) {
    std::string list = text("lfm2moe.attention.head_count_kv") + number<std::uint32_t>(9) + number<std::uint32_t>(4) +
                       number<std::uint64_t>(of_layers.size());
    for (const std::uint32_t n : of_layers) list += number<std::uint32_t>(n);
    return Described{"lfm2moe", {list}, {}};
  };
  const ModelConfig lfm = heads({0, 2, 0, 2}).read();
  CHECK(lfm.kv_heads == 2);
  CHECK(lfm.layer[2].linear);
  CHECK_FALSE(lfm.layer[3].linear);
  CHECK(lfm.moe_layers.size() == 4);
  for (const Described& other :
       {heads({0, 2, 4, 2}), heads({0, 0, 0, 0}), heads({2, 2}),
        Described{"lfm2moe", {whole("lfm2moe.attention.head_count_kv", 2)}, {}}, Described{"lfm2moe", {}, {}}}) {
    CHECK(says(other.refusal(), {"attention.head_count_kv", "a list with the heads of each layer"}));
  }
  check_gemma4();
  const std::string pattern = text("exaone-moe.attention.sliding_window_pattern") + number<std::uint32_t>(9) +
                              number<std::uint32_t>(7) + number<std::uint64_t>(4) + std::string("\1\0\1\1", 4);
  const ModelConfig exaone =
      Described{"exaone-moe", {pattern, whole("exaone-moe.attention.sliding_window", 8)}, {}}.read();
  CHECK(exaone.layer[0].window == 8);
  CHECK(exaone.layer[1].window == 0);
  CHECK_FALSE(exaone.layer[1].turns);

  // Tensors say whether there are biases, and how wide a shared expert is.
  for (const std::string arch :
       {"qwen3moe", "olmoe", "granitemoe", "dots1", "hunyuan-moe", "llama4", "phimoe", "glm4moe"}) {
    CAPTURE(arch);
    CHECK_FALSE(Described{arch, {}, {}}.read().qkv_bias);
    CHECK(Described{arch, {}, {{"blk.0.attn_q.bias", std::vector<float>(32)}}}.read().qkv_bias);
  }
  const std::vector<std::string> delta = {whole("qwen3next.ssm.group_count", 2), whole("qwen3next.ssm.state_size", 4),
                                          whole("qwen3next.ssm.time_step_rank", 2),
                                          whole("qwen3next.ssm.conv_kernel", 4), whole("qwen3next.ssm.inner_size", 8)};
  const std::vector<float> shared(std::size_t{24} * 32);
  CHECK(Described{"qwen3next", delta, {{"blk.0.ffn_gate_shexp.weight", shared}}}.read().shared_width == 24);
}

TEST_CASE("a Llama 4 of 128 experts has no norms of queries and keys, which leave no tensor") {
  CHECK(Described{"llama4", {}, {}}.read().head_norm != HeadNorm::none);
  Described maverick{"llama4", {}, {}};
  maverick.experts = 128;
  CHECK(maverick.read().head_norm == HeadNorm::none);
  CHECK(says(Described{"llama4", {whole("llama4.attention.sliding_window", 0)}, {}}.refusal(), {"without chunks"}));
}

TEST_CASE("a GGUF file cut at any length, or with any byte of its header changed, never crashes") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.gguf";
  const std::string whole = read_file(gguf("mixtral-bf16"));
  const std::size_t header = whole.size() - 590'080;
  for (std::size_t n = 0; n < whole.size(); n += 1 + (n < header ? 13 : whole.size() / 20)) {
    write_file(path, whole.substr(0, n));
    CHECK_FALSE(refusal("m.gguf", [&] { Gguf file(path); }).empty());
  }
  Random random(9);
  for (int i = 0; i < 300; ++i) {
    std::string changed = whole;
    for (std::uint32_t n = random.between(1, 3); n > 0; --n) {
      changed[random.below(static_cast<std::uint32_t>(header))] = static_cast<char>(random.below(256));
    }
    write_file(path, changed);
    refusal("", [&] {
      const ModelConfig config = read_model_config(path);
      if (config.hidden <= 64 && config.vocabulary <= 258) CpuModel model(path);
    });
  }
}
