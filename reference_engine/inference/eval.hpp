/// @file
/// What a stack costs in quality: how well it predicts a text, beside the resident model.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inference/generate.hpp"

namespace ferry::engine {

/// Sums over scored tokens, and the means that reports give, most of them a byte.
/// Probabilities are over all tokens, sums in double.
struct Quality {
  using Logits = Eigen::Ref<const Eigen::RowVectorXf>;

  std::uint64_t bytes = 0;  ///< of the scored tokens; where nobody knows how many these have, one each
  std::uint64_t tokens = 0;
  std::uint64_t agreed = 0;            ///< both put the same token first (ties: the lower one)
  double bits = 0, resident_bits = 0;  ///< -log2 of the probability of the token that came
  double kl_bits = 0;                  ///< KL(resident || stack), in bits

  /// One token, the bytes that it stands for, and the logits [vocabulary] that predicted it.
  void score(const Logits& resident, const Logits& stack, std::uint32_t token, std::uint32_t token_bytes = 1);
  Quality& operator+=(const Quality& other);

  [[nodiscard]] double bits_per_byte() const { return mean(bits); }
  [[nodiscard]] double bits_per_byte_resident() const { return mean(resident_bits); }
  [[nodiscard]] double change_percent() const { return bits == resident_bits ? 0 : 100 * (bits / resident_bits - 1); }
  [[nodiscard]] double kl_divergence() const { return mean(kl_bits); }
  [[nodiscard]] double top1_agreement() const {
    return tokens == 0 ? 0 : static_cast<double>(agreed) / static_cast<double>(tokens);
  }

 private:
  [[nodiscard]] double mean(double sum) const { return bytes == 0 ? 0 : sum / static_cast<double>(bytes); }
};

/// One stack over some text.
struct Evaluated {
  Quality quality;
  Outcomes phase[2];                                       ///< by Phase
  std::uint64_t bytes_by_precision[precision_count] = {};  ///< copied, before the first step, too
  std::uint64_t preload_bytes = 0;                         ///< of those, before it
  Nanoseconds virtual_ns = 0, resident_ns = 0;             ///< on the virtual clock: what the stack took, and resident
  std::uint64_t computed[precision_count] = {};  ///< experts on the device in decode, once an expert, layer and step

  Evaluated& operator+=(const Evaluated& other);
};

struct EvalOptions {
  std::uint32_t window = 256;   ///< tokens; the text is cut into such, each begun as texts are
  std::uint32_t batch = 1;      ///< windows that run together, as sequences of their own
  Phase phase = Phase::decode;  ///< decode: token by token; prefill: a window's tokens in one step
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;  ///< tokens; false: stop

  /// Rows of the largest step, where texts begin with `begin` tokens.
  [[nodiscard]] std::uint32_t max_rows(std::size_t begin = 1) const {
    const std::uint32_t tokens = window + static_cast<std::uint32_t>(begin) - 1;  // the last is not run
    return phase == Phase::decode ? batch : batch * std::max(1U, tokens);
  }
  /// Throws InputError for windows that the model cannot take.
  void check(const ModelConfig& config) const;
};

/// Runs the text through the resident model and through each of the stacks, and scores once every token that has one before
/// it. Returns one result a stack, as far as `progress` let it come. The runners are new, of the same model, and made for
/// `options.max_rows()`; their caches stay warm from window to window. Lossy stacks decide by what has arrived: only on
/// the virtual clock do results repeat. Throws InputError for an empty text, windows that do not fit, or values that
/// are not finite.
std::vector<Evaluated> evaluate(Model& model, ExpertRunner& resident,
                                const std::vector<std::unique_ptr<ExpertRunner>>& stacks, const TokenizedText& text,
                                const EvalOptions& options);

}  // namespace ferry::engine
