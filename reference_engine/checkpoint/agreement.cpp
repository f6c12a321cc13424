#include "checkpoint/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

Tensor row_of(const Tensor& matrix, std::uint64_t row) {
  Tensor t = matrix;
  t.shape = {matrix.shape[1]};
  t.bytes /= matrix.shape[0];
  t.data += row * t.bytes;
  return t;
}

// Row by row, because a large model's embeddings take gigabytes.
void check_tied(const Checkpoint& checkpoint, const ModelConfig& c) {
  const std::string embedding_name = c.names.model + "embed_tokens.weight", head_name = c.names.head + "weight";
  const TensorFile* file = checkpoint.find(head_name);
  if (file == nullptr) return;
  const Tensor& embedding = checkpoint.at(embedding_name, {c.vocabulary, c.hidden});
  const Tensor& head = checkpoint.at(head_name, {c.vocabulary, c.hidden});
  if (embedding.scales != nullptr || head.scales != nullptr) {
    throw InputError(
        fmt::format("{}: tensor \"{}\" is there in FP8, expected none, since config.json has "
                    "\"tie_word_embeddings\": true; set it to false to use both",
                    file->path().string(), head_name));
  }
  for (std::uint64_t row = 0; row < c.vocabulary; ++row) {
    const Tensor a = row_of(embedding, row), b = row_of(head, row);
    if (a.dtype == b.dtype && std::memcmp(a.data, b.data, a.bytes) == 0) continue;
    const std::vector<float> x = a.to_floats(), y = b.to_floats();
    const auto [at, at_head] = std::mismatch(x.begin(), x.end(), y.begin());
    if (at == x.end()) continue;
    throw InputError(
        fmt::format("{}: tensor \"{}\" is {} at [{}, {}] where \"{}\" is {}, expected no difference, since config.json "
                    "has \"tie_word_embeddings\": true; set it to false to use both, or remove {} to use the "
                    "embeddings alone",
                    file->path().string(), head_name, *at_head, row, at - x.begin(), embedding_name, *at, head_name));
  }
}

bool begins(const std::string& name, const std::string& with) {
  return name.compare(0, with.size(), with) == 0;
}
bool ends(const std::string& name, const std::string& with) {
  return name.size() >= with.size() && name.compare(name.size() - with.size(), with.size(), with) == 0;
}

/// Number of the layer that a tensor belongs to; nothing if it belongs to none.
std::optional<std::uint64_t> layer_of(const std::string& name, const ModelConfig& c) {
  const std::string prefix = c.names.model + "layers.";
  if (!begins(name, prefix)) return std::nullopt;
  const std::size_t end = name.find('.', prefix.size());
  const std::string digits = name.substr(prefix.size(), end == std::string::npos ? end : end - prefix.size());
  if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoull(digits);
}

std::string why_unread(const std::string& name, const ModelConfig& c) {
  const bool bias = ends(name, "q_proj.bias") || ends(name, "k_proj.bias") || ends(name, "v_proj.bias");
  if (bias && c.architecture_name == "MixtralForCausalLM") {
    return "a Mixtral has no biases; remove all of them to compute without";
  }
  if (bias && c.architecture_name == "Qwen2MoeForCausalLM") {
    return "config.json has \"qkv_bias\": false; set it to true to use the biases, or remove all of them to compute "
           "without";
  }
  return fmt::format("{} as config.json describes it does not use it; remove it to compute without",
                     c.architecture_name);
}

}  // namespace

std::vector<std::string> check_agreement(const Checkpoint& checkpoint, const ModelConfig& c) {
  if (c.tied_embeddings) check_tied(checkpoint, c);
  // Only GGUF files store experts like that. Every tensor that they have outside of layers takes part in the model.
  const bool gguf = c.storage == ExpertStorage::fused_parts;
  std::vector<std::string> left, notes;
  for (const std::string& name : checkpoint.unread()) {
    if (ends(name, "rotary_emb.inv_freq")) continue;     // old files have it; it says nothing new
    if (gguf && name.rfind("rope_f", 0) == 0) continue;  // rope_freqs, rope_factors: read with the metadata
    if (c.tied_embeddings && name == c.names.head + "weight") continue;
    // transformers writes shared experts of which there are none.
    if (checkpoint.find(name)->at(name).elements() == 0) continue;
    const auto layer = layer_of(name, c);
    const bool predicts_more = begins(name, c.names.model + "mtp");  // ERNIE's layers for multi-token prediction
    const bool used = layer ? *layer < c.layers
                            : gguf || (begins(name, c.names.model) && !predicts_more) || begins(name, c.names.head);
    if (!used) {
      left.push_back(name);
      continue;
    }
    throw InputError(fmt::format("{}: tensor \"{}\" is there, expected none, since {}",
                                 checkpoint.find(name)->path().string(), name, why_unread(name, c)));
  }
  if (!left.empty()) {
    notes.push_back(
        fmt::format("{} tensors are not used, from \"{}\" to \"{}\"", left.size(), left.front(), left.back()));
  }
  for (const std::string& name : c.unknown) {
    notes.push_back(
        fmt::format("{}: field \"{}\" is not read here, and was not used", gguf ? "metadata" : "config.json", name));
  }
  for (const std::string& name : c.generation_not_done) {
    notes.push_back(fmt::format("generation_config.json: field \"{}\" is not computed here, and was not used", name));
  }
  return notes;
}

}  // namespace ferry::engine
