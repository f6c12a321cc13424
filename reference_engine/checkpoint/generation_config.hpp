/// @file
/// How a model's makers mean its texts to be generated.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ferry::engine {

/// generation_config.json beside config.json, or the metadata of a GGUF file; what is not there is empty.
struct GenerationConfig {
  std::string file;  ///< where it is from; empty: nowhere
  std::vector<std::uint32_t> end_tokens;
  /// Only where tokens are to be drawn at all (`do_sample`): else the likeliest is taken.
  std::optional<double> temperature, top_p, min_p, repeat_penalty;
  std::optional<std::uint32_t> top_k;
  std::vector<std::string> not_done;  ///< fields that change texts in transformers, and are not computed here
};

/// Throws InputError, naming the field, for values that cannot be.
GenerationConfig read_generation_config(const std::filesystem::path& model);

}  // namespace ferry::engine
