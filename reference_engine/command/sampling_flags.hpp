/// @file
/// How tokens are drawn, as flags and a model's own file say it.
#pragma once
#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "inference/sampler.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// Flags win over the model's generation_config.json, that over what takes the likeliest token.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
  std::optional<std::uint32_t> top_k;
  std::uint64_t seed = 0;
  std::vector<std::string> stops;

  void add(CLI::App* c);
  /// Throws InputError for values that cannot be.
  [[nodiscard]] Sampling of(const std::filesystem::path& model) const;
  /// Each value, and where it is from: "flag", the file, or "default".
  [[nodiscard]] Json report(const std::filesystem::path& model) const;
};

}  // namespace ferry::engine
