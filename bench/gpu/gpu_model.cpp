#include "gpu_model.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "support/errors.hpp"
#include "support/threads.hpp"

namespace ferry::bench {

using namespace engine;

Pages::Pages(std::uint64_t bytes) : bytes_(bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw InputError(fmt::format("out of host memory: {} for experts", size_text(bytes)));
  static_cast<void>(::madvise(p, bytes, MADV_HUGEPAGE));
  data_ = static_cast<std::byte*>(p);
}

Pages::~Pages() {
  ::munmap(data_, bytes_);
}

namespace {

/// Experts that no checkpoint has, each in memory of its own.
class GeneratedStore final : public ExpertStore {
 public:
  explicit GeneratedStore(const ModelConfig& c)
      : layout_{c.hidden, c.expert_width, DType::bf16}, layers_(c.layers), experts_(c.experts), maker_(layout_) {
    add(Precision::full);
  }

  [[nodiscard]] const ExpertLayout& layout() const override { return layout_; }
  [[nodiscard]] std::uint8_t precisions() const override {
    unsigned stored = 0;
    for (std::uint32_t p = 0; p < precision_count; ++p) stored |= pages_[p] ? 1U << p : 0U;
    return static_cast<std::uint8_t>(stored);
  }
  void add(Precision p) override {
    auto& pages = pages_[static_cast<unsigned>(p)];
    if (p == Precision::skip || pages) return;
    const std::uint64_t each = layout_.bytes(p), all = std::uint64_t{layers_} * experts_;
    pages = std::make_unique<Pages>(all * each);
    on_threads(all_threads(), all, [&](std::size_t n) { maker_.make(n, p, pages->data() + n * each); });
  }
  [[nodiscard]] HeldBytes bytes(Variant v) const override {
    const auto& pages = pages_[static_cast<unsigned>(v.precision)];
    if (!pages) return {};
    const std::uint64_t each = layout_.bytes(v.precision);
    return View<const std::byte>{pages->data() + (std::uint64_t{v.id.layer} * experts_ + v.id.expert) * each,
                                 static_cast<std::uint32_t>(each)};
  }
  [[nodiscard]] std::vector<std::pair<const std::byte*, std::size_t>> fixed_memory() const override {
    std::vector<std::pair<const std::byte*, std::size_t>> all;
    for (const auto& pages : pages_) {
      if (pages) all.emplace_back(pages->data(), pages->size());
    }
    return all;
  }

 private:
  ExpertLayout layout_;
  std::uint32_t layers_, experts_;  // of a layer
  ExpertBytesMaker maker_;
  std::array<std::unique_ptr<Pages>, precision_count> pages_;  // by Precision
};

/// A folder that goes with its owner.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ferry-gpu-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw InputError(name + ": cannot be made");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct NamedShape {
  std::string name;
  std::vector<std::uint64_t> shape;
  bool ones = false;

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t product = 2;
    for (const std::uint64_t n : shape) product *= n;
    return product;
  }
};

/// The tensors that every token needs, all bf16.
std::vector<NamedShape> dense_tensors(const DecodeShape& s, std::uint32_t layers) {
  const std::uint64_t hidden = s.number("hidden_size"), vocabulary = s.number("vocab_size");
  const std::uint64_t heads = s.number("num_attention_heads");
  const std::uint64_t kv = hidden / heads * s.number("num_key_value_heads");
  const std::uint64_t experts = s.experts();
  std::vector<NamedShape> all = {{"model.embed_tokens.weight", {vocabulary, hidden}},
                                 {"lm_head.weight", {vocabulary, hidden}},
                                 {"model.norm.weight", {hidden}, true}};
  for (std::uint32_t l = 0; l < layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    all.push_back({at + "input_layernorm.weight", {hidden}, true});
    all.push_back({at + "post_attention_layernorm.weight", {hidden}, true});
    all.push_back({at + "self_attn.q_proj.weight", {hidden, hidden}});
    all.push_back({at + "self_attn.k_proj.weight", {kv, hidden}});
    all.push_back({at + "self_attn.v_proj.weight", {kv, hidden}});
    all.push_back({at + "self_attn.o_proj.weight", {hidden, hidden}});
    all.push_back({at + (s.shared() ? "mlp.gate.weight" : "block_sparse_moe.gate.weight"), {experts, hidden}});
    if (!s.shared()) continue;
    const std::uint64_t width = s.number("shared_expert_intermediate_size");
    all.push_back({at + "self_attn.q_proj.bias", {hidden}});
    all.push_back({at + "self_attn.k_proj.bias", {kv}});
    all.push_back({at + "self_attn.v_proj.bias", {kv}});
    all.push_back({at + "mlp.shared_expert_gate.weight", {1, hidden}});
    all.push_back({at + "mlp.shared_expert.gate_proj.weight", {width, hidden}});
    all.push_back({at + "mlp.shared_expert.up_proj.weight", {width, hidden}});
    all.push_back({at + "mlp.shared_expert.down_proj.weight", {hidden, width}});
  }
  return all;
}

/// A sparse file without experts: it only stores norms and the rows of tokens that are used, and so takes no room.
void write_checkpoint(const std::filesystem::path& folder, const DecodeShape& s, std::uint32_t layers) {
  Json config = s.config;
  config["num_hidden_layers"] = layers;
  std::ofstream(folder / "config.json") << config.dump();
  const std::vector<NamedShape> tensors = dense_tensors(s, layers);
  Json header = Json::object();
  std::uint64_t end = 0;
  for (const NamedShape& t : tensors) {
    header[t.name] = {{"dtype", "BF16"}, {"shape", t.shape}, {"data_offsets", {end, end + t.bytes()}}};
    end += t.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  const std::filesystem::path path = folder / "model.safetensors";
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  std::mt19937 random(1);
  std::uint64_t at = sizeof(size) + size;
  for (const NamedShape& t : tensors) {
    const bool rows = t.shape.size() == 2 && t.shape[0] == s.number("vocab_size");
    std::vector<std::uint16_t> values;
    if (t.ones) values.assign(t.shape[0], 0x3f80);
    if (rows) {
      values.resize(std::min<std::uint64_t>(tokens_used, t.shape[0]) * t.shape[1]);
      for (std::uint16_t& v : values) v = static_cast<std::uint16_t>(0x3c00U | (random() & 0x807fU));
    }
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 2));
    at += t.bytes();
  }
  file.close();
  std::error_code error;
  std::filesystem::resize_file(path, at, error);
  if (!file || error) throw InputError(path.string() + ": cannot be written");
}

}  // namespace

DecodeShape mixtral_shape(bool quick) {
  Json c = {{"architectures", {"MixtralForCausalLM"}},
            {"num_hidden_layers", 32},
            {"hidden_size", 4096},
            {"num_attention_heads", 32},
            {"num_key_value_heads", 8},
            {"num_local_experts", 8},
            {"num_experts_per_tok", 2},
            {"intermediate_size", 14336},
            {"vocab_size", 32000},
            {"max_position_embeddings", 32768},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 1e6},
            {"tie_word_embeddings", false},
            {"bos_token_id", 1},
            {"eos_token_id", 2},
            {"hidden_act", "silu"}};
  if (quick) {
    c.update({{"num_hidden_layers", 3},
              {"hidden_size", 64},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"intermediate_size", 96},
              {"vocab_size", 128}});
  }
  return {"mixtral-8x7b", c};
}

DecodeShape qwen_shape(bool quick) {
  Json c = {{"architectures", {"Qwen2MoeForCausalLM"}},
            {"num_hidden_layers", 24},
            {"hidden_size", 2048},
            {"num_attention_heads", 16},
            {"num_key_value_heads", 16},
            {"num_experts", 60},
            {"num_experts_per_tok", 4},
            {"moe_intermediate_size", 1408},
            {"shared_expert_intermediate_size", 5632},
            {"norm_topk_prob", false},
            {"vocab_size", 151936},
            {"max_position_embeddings", 8192},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 1e6},
            {"tie_word_embeddings", false},
            {"bos_token_id", 1},
            {"eos_token_id", 2},
            {"hidden_act", "silu"}};
  if (quick) {
    c.update({{"num_hidden_layers", 3},
              {"hidden_size", 64},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 4},
              {"moe_intermediate_size", 32},
              {"shared_expert_intermediate_size", 64},
              {"vocab_size", 128}});
  }
  return {"qwen1.5-moe-a2.7b", c};
}

std::uint64_t DecodeShape::dense_bytes(std::uint32_t layers) const {
  std::uint64_t bytes = 0;
  for (const NamedShape& t : dense_tensors(*this, layers)) bytes += t.bytes();
  return bytes;
}

ModelFiles make_files(const DecodeShape& shape, std::uint32_t layers) {
  const TemporaryFolder folder;  // open files outlive it
  write_checkpoint(folder.path(), shape, layers);
  ModelConfig config = read_model_config(folder.path());
  auto store = std::make_unique<GeneratedStore>(config);
  return {std::move(config), Checkpoint(folder.path()), std::move(store)};
}

}  // namespace ferry::bench
