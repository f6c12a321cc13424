// A GGUF file. If it is accepted and small, some tokens are run.
#include "checkpoint/gguf.hpp"
#include "cpu/cpu_model.hpp"
#include "fuzz/fuzz.hpp"
#include "inference/generate.hpp"
#include "profiles/machine.hpp"

namespace ferry::fuzz {
namespace {

using namespace engine;

template <class T>
std::string number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
std::string text(const std::string& s) {
  return number<std::uint64_t>(s.size()) + s;
}

/// A file in the making: metadata, tensors of floats, and their data.
struct Writer {
  std::string metadata, tensors, data;
  std::uint64_t entries = 0, count = 0;

  /// Type and bytes of a value.
  static std::pair<std::uint32_t, std::string> value_of(const Json& value) {
    if (value.is_string()) return {8, text(value.get<std::string>())};
    if (value.is_boolean()) return {7, std::string(1, value == true ? '\1' : '\0')};
    if (value.is_number_float()) return {6, number(value.get<float>())};
    if (!value.is_array()) return {4, number(value.get<std::uint32_t>())};
    std::string all = number(value.empty() ? 4 : value_of(value[0]).first) + number<std::uint64_t>(value.size());
    for (const Json& one : value) all += value_of(one).second;
    return {9, all};
  }
  void set(const std::string& name, const Json& value) {
    const auto [type, bytes] = value_of(value);
    metadata += text(name) + number(type) + bytes;
    ++entries;
  }
  void add(const std::string& name, const std::vector<std::uint64_t>& shape, const std::vector<float>& values) {
    tensors += text(name) + number(static_cast<std::uint32_t>(shape.size()));
    for (std::size_t d = shape.size(); d > 0; --d) tensors += number(shape[d - 1]);
    tensors += number<std::uint32_t>(0) + number<std::uint64_t>(data.size());
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    data.resize((data.size() + 31) / 32 * 32);
    ++count;
  }
  [[nodiscard]] std::string whole() const {
    std::string out = "GGUF" + number<std::uint32_t>(3) + number(count) + number(entries) + metadata + tensors;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data;
  }
};

/// The metadata of a file, with four rows of embeddings as its only tensor.
std::string described(const std::filesystem::path& path) {
  const Gguf file(path);
  Writer w;
  for (const auto& [name, value] : file.metadata().items()) w.set(name, value);
  const std::uint64_t hidden = file.tensors().at("token_embd.weight").shape[1];
  w.add("token_embd.weight", {4, hidden}, std::vector<float>(4 * hidden));
  return w.whole();
}

std::string tiny_mixtral() {
  const test::TinyCheckpoint c;
  Writer w;
  w.set("general.architecture", std::string("llama"));
  for (const auto& [name, value] :
       {std::pair{"block_count", 2U}, std::pair{"embedding_length", 8U}, std::pair{"attention.head_count", 2U},
        std::pair{"attention.head_count_kv", 1U}, std::pair{"context_length", 64U}, std::pair{"expert_count", 4U},
        std::pair{"expert_used_count", 2U}, std::pair{"feed_forward_length", 6U}}) {
    w.set(std::string("llama.") + name, value);
  }
  w.set("llama.attention.layer_norm_rms_epsilon", 1e-6F);
  w.set("llama.rope.freq_base", 10000.0F);
  const auto add = [&](const std::string& to, const std::string& from) {
    w.add(to, c.shapes.at(from), c.values.at(from));
  };
  add("token_embd.weight", "model.embed_tokens.weight");
  add("output_norm.weight", "model.norm.weight");
  for (const std::string l : {"0", "1"}) {
    const std::string to = "blk." + l + ".", from = "model.layers." + l + ".";
    add(to + "attn_norm.weight", from + "input_layernorm.weight");
    add(to + "ffn_norm.weight", from + "post_attention_layernorm.weight");
    for (const auto& [a, b] :
         {std::pair{"q", "q"}, std::pair{"k", "k"}, std::pair{"v", "v"}, std::pair{"output", "o"}}) {
      add(to + "attn_" + a + ".weight", from + "self_attn." + b + "_proj.weight");
    }
    add(to + "ffn_gate_inp.weight", from + "block_sparse_moe.gate.weight");
    for (const auto& [a, b] : {std::pair{"gate", "w1"}, std::pair{"up", "w3"}, std::pair{"down", "w2"}}) {
      std::vector<float> all;
      std::vector<std::uint64_t> shape = c.shapes.at(from + "block_sparse_moe.experts.0." + b + ".weight");
      for (int e = 0; e < 4; ++e) {
        const auto& one = c.values.at(from + "block_sparse_moe.experts." + std::to_string(e) + "." + b + ".weight");
        all.insert(all.end(), one.begin(), one.end());
      }
      shape.insert(shape.begin(), 4);
      w.add(to + "ffn_" + a + "_exps.weight", shape, all);
    }
  }
  return w.whole();
}

}  // namespace

void read(const std::string& input) {
  const auto path = file("model.gguf", input);
  const ModelConfig config = read_model_config(path);
  if (config.vocabulary > 1000 || config.hidden > 64 || config.layers > 4 || config.context > 4096) return;
  CpuModel model(path);
  RunnerOptions o;
  o.stack = "cross-layer-lru";
  o.max_rows = 8;
  static const Costs costs = read_machine("rtx3090-pcie3").costs({{1000, 1000, 1000}}, CostSource::effective);
  o.virtual_costs = costs;  // without a thread
  const auto runner = make_runner(model, o);
  GenerateOptions g;
  g.token_prompts = {{1, 2, 3}};
  g.max_new_tokens = 2;
  g.prefill_chunk = 8;
  static_cast<void>(generate(model, *runner, g));
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t /*seed*/) {
  return mutate_bytes(input, most);
}

std::vector<std::string> seeds() {
  std::vector<std::string> all = {tiny_mixtral()};
  for (const auto& entry : std::filesystem::directory_iterator(data_directory().parent_path() / "tests/goldens/gguf")) {
    const std::string name = entry.path().filename().string();
    if (name.find("00002-of") == std::string::npos && name.rfind("types-", 0) != 0)
      all.push_back(described(entry.path()));
  }
  return all;
}

}  // namespace ferry::fuzz
