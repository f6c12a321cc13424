/// @file
/// What a model's gates chose, token by token: recorded by others, or by the reference engine.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "ferry/model.hpp"

namespace ferry::bench {

/// Rows are tokens. A step is one forward pass: one row in decode, a whole prompt in prefill.
struct Routing {
  struct Step {
    Phase phase = Phase::decode;
    std::uint32_t first = 0, rows = 0;  ///< its rows
    bool begins = false;                ///< it is the first of a sequence
  };

  std::string name;
  std::uint16_t layers = 0, experts = 0, top_k = 0;
  std::vector<Step> steps;
  std::vector<std::uint16_t> chosen;        ///< [rows, layers, top_k], best first; no_expert: not recorded
  std::vector<float> scores;                ///< [rows, layers, experts] of all experts, or empty
  std::vector<std::uint64_t> expert_bytes;  ///< [layers], or empty

  [[nodiscard]] std::uint32_t rows() const { return steps.empty() ? 0 : steps.back().first + steps.back().rows; }
  [[nodiscard]] std::uint32_t most_rows() const;
  [[nodiscard]] std::uint32_t sequences() const;
  /// The k experts of a row, best first.
  [[nodiscard]] const std::uint16_t* of(std::uint32_t row, std::uint32_t layer) const {
    return chosen.data() + (std::size_t{row} * layers + layer) * top_k;
  }
  /// Scores of one row.
  [[nodiscard]] View<const float> scores_of(std::uint32_t row, std::uint32_t layer) const {
    return {scores.data() + (std::size_t{row} * layers + layer) * experts, experts};
  }
  /// What a step asks a layer for: its distinct experts, in the order of their last use.
  void asked(const Step& step, std::uint32_t layer, std::vector<std::uint16_t>& out) const;
};

inline constexpr std::uint32_t all_tokens = std::numeric_limits<std::uint32_t>::max();

/// The first `tokens` tokens of a file. `*.csv`: a route trace of BigMoeOnEdge (comment lines `# key=value`, then
/// turn, phase, step, layer, slot, expert, ...). Otherwise safetensors with `experts` [tokens, layers, k] as U8 and
/// `sequence_start` as I32; if there is no `__metadata__` "experts_per_layer", the largest index counts.
/// Throws InputError for anything else.
Routing read_routing(const std::filesystem::path& file, std::uint32_t tokens = all_tokens);

/// Runs a model (a bundled one by its name, or a folder) over a text, in sequences of 256 bytes behind the begin token.
/// Every token is a step; scores of all experts are there.
Routing record_routing(const std::string& model, const std::filesystem::path& text, std::uint32_t tokens = all_tokens);

}  // namespace ferry::bench
