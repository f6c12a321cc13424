/// @file
/// Checkpoints of a few kilobytes, made up on the spot, whole or damaged.
#pragma once
#include <Eigen/Core>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "json.hpp"
#include "support/random.hpp"

namespace ferry::test {

using engine::Json;

/// A folder that is gone when the test is over.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ferry-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// The bytes of a safetensors file with this header text (its length is put in front).
inline std::string safetensors_file(const std::string& header, const std::string& data) {
  std::uint64_t n = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + data;
}

/// A Mixtral of 2 layers, hidden 8, 4 experts of width 6.
struct TinyCheckpoint {
  Json config = {{"architectures", {"MixtralForCausalLM"}},
                 {"hidden_size", 8},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"vocab_size", 258},
                 {"max_position_embeddings", 64},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", false},
                 {"bos_token_id", 256},
                 {"eos_token_id", 257},
                 {"num_experts_per_tok", 2},
                 {"num_local_experts", 4},
                 {"intermediate_size", 6},
                 {"sliding_window", nullptr}};
  std::map<std::string, std::vector<std::uint64_t>> shapes;
  std::map<std::string, std::vector<float>> values;

  TinyCheckpoint() {
    Random random(17);
    auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
      std::uint64_t n = 1;
      for (const auto d : shape) n *= d;
      auto& v = values[name];
      for (std::uint64_t i = 0; i < n; ++i) v.push_back((random.unit() - 0.5F) * 0.5F);
      shapes[name] = std::move(shape);
    };
    add("model.embed_tokens.weight", {258, 8});
    add("lm_head.weight", {258, 8});
    add("model.norm.weight", {8});
    for (const std::string l : {"0", "1"}) {
      const std::string at = "model.layers." + l + ".";
      add(at + "input_layernorm.weight", {8});
      add(at + "post_attention_layernorm.weight", {8});
      add(at + "self_attn.q_proj.weight", {8, 8});
      add(at + "self_attn.k_proj.weight", {4, 8});
      add(at + "self_attn.v_proj.weight", {4, 8});
      add(at + "self_attn.o_proj.weight", {8, 8});
      add(at + "block_sparse_moe.gate.weight", {4, 8});
      for (const std::string e : {"0", "1", "2", "3"}) {
        for (const std::string w : {"w1", "w3"})
          add(at + "block_sparse_moe.experts." + e + "." + w + ".weight", {6, 8});
        add(at + "block_sparse_moe.experts." + e + ".w2.weight", {8, 6});
      }
    }
  }

  /// Header and data of the tensors for which `take` says yes. Type: "F32", "F16" or "BF16".
  std::pair<Json, std::string> pack(const std::string& type,
                                    const std::function<bool(const std::string&)>& take) const {
    Json header = {{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const auto& [name, v] : values) {
      if (!take(name)) continue;
      const std::size_t begin = data.size();
      for (const float f : v) {
        if (type == "F32") data.append(reinterpret_cast<const char*>(&f), 4);
        const Eigen::half h(f);
        const Eigen::bfloat16 b(f);
        if (type == "F16") data.append(reinterpret_cast<const char*>(&h), 2);
        if (type == "BF16") data.append(reinterpret_cast<const char*>(&b), 2);
      }
      header[name] = {{"dtype", type}, {"shape", shapes.at(name)}, {"data_offsets", {begin, data.size()}}};
    }
    return {header, data};
  }

  void write(const std::filesystem::path& folder, const std::string& type = "F32") const {
    write_file(folder / "config.json", config.dump());
    const auto [header, data] = pack(type, [](const std::string&) { return true; });
    write_file(folder / "model.safetensors", safetensors_file(header.dump(), data));
  }

  /// Two shards and an index.
  void write_sharded(const std::filesystem::path& folder, const std::string& type = "F32") const {
    write_file(folder / "config.json", config.dump());
    Json index = {{"metadata", Json::object()}, {"weight_map", Json::object()}};
    for (int shard = 0; shard < 2; ++shard) {
      auto mine = [&](const std::string& name) { return (name.find("layers.1") != std::string::npos) == (shard == 1); };
      const std::string file = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
      const auto [header, data] = pack(type, mine);
      write_file(folder / file, safetensors_file(header.dump(), data));
      for (const auto& [name, v] : values) {
        if (mine(name)) index["weight_map"][name] = file;
      }
    }
    write_file(folder / "model.safetensors.index.json", index.dump());
  }
};

}  // namespace ferry::test
