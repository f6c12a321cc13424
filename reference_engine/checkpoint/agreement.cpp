#include "checkpoint/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

Tensor row_of(const Tensor& matrix, std::uint64_t row) {
  const std::uint64_t bytes = matrix.bytes / matrix.shape[0];
  return {matrix.dtype, matrix.dtype_name, {matrix.shape[1]}, matrix.data + row * bytes, bytes};
}

// Row by row, because a large model's embeddings take gigabytes.
void check_tied(const Checkpoint& checkpoint, const ModelConfig& c) {
  const std::string embedding_name = "model.embed_tokens.weight", head_name = "lm_head.weight";
  const Safetensors* file = checkpoint.find(head_name);
  if (file == nullptr) return;
  const Tensor& embedding = checkpoint.at(embedding_name, {c.vocabulary, c.hidden});
  const Tensor& head = checkpoint.at(head_name, {c.vocabulary, c.hidden});
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

void check_no_biases(const Checkpoint& checkpoint, const ModelConfig& c) {
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    for (const char* part : {"q", "k", "v"}) {
      const std::string name = fmt::format("model.layers.{}.self_attn.{}_proj.bias", l, part);
      const Safetensors* file = checkpoint.find(name);
      if (file == nullptr) continue;
      throw InputError(fmt::format("{}: tensor \"{}\" is there, expected none, since {}", file->path().string(), name,
                                   c.architecture == Architecture::mixtral
                                       ? "a Mixtral has no biases; remove all of them to compute without"
                                       : "config.json has \"qkv_bias\": false; set it to true to use the biases, or "
                                         "remove all of them to compute without"));
    }
  }
}

}  // namespace

void check_agreement(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.tied_embeddings) check_tied(checkpoint, config);
  if (!config.qkv_bias) check_no_biases(checkpoint, config);
}

}  // namespace ferry::engine
