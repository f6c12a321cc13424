/// @file
/// Texts as a model's tokens, and back.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.hpp"

namespace ferry::engine {

/// The most tokens that a tokenizer can have, sixteen times as many as any that is known: memory is taken for the highest.
inline constexpr std::uint32_t most_tokens = 1U << 22U;

/// What a model reads and writes. All calls from any thread.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// What it was made from, for reports: "tokenizer.json (BPE)".
  [[nodiscard]] virtual std::string kind() const = 0;
  /// One more than the largest token.
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  /// What is no UTF-8 counts as replacement characters. `whole`: with the tokens that a text begins and ends with. `names`:
  /// names of special tokens in the text are those tokens, and no text. Throws InputError for a text that cannot be split.
  [[nodiscard]] virtual std::vector<std::uint32_t> encode(std::string_view text, bool whole,
                                                          bool names = true) const = 0;
  /// The tokens that a text begins with.
  [[nodiscard]] virtual std::vector<std::uint32_t> begin() const = 0;
  /// The text of tokens, the first of which begins a text. `special`: with the names of special tokens.
  [[nodiscard]] virtual std::string decode(std::span<const std::uint32_t> tokens, bool special) const = 0;
  /// The bytes that a token adds to a text, which need not be whole characters; nothing for one that does not exist.
  [[nodiscard]] virtual std::string bytes(std::uint32_t token) const = 0;
  /// Whether a token means something by itself, and is not shown.
  [[nodiscard]] virtual bool is_special(std::uint32_t token) const = 0;
  [[nodiscard]] virtual std::optional<std::uint32_t> find(std::string_view token) const = 0;
  /// Whether tokens of a text begin with a blank that is not in it, so that decoding takes the first token's away.
  [[nodiscard]] virtual bool begins_with_blank() const { return false; }
};

/// A model's tokenizer: tokenizer.json, tokenizer.model or a file of ranks in its folder, a GGUF file's own, or the bytes of
/// the models that come with Ferry; null where there is none of these. Throws InputError for files that cannot be read, and
/// kinds that are not supported.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& model, const ModelConfig& config);

/// The same of a file by itself (tokenizer.json, NAME.model, NAME.tiktoken, GGUF), or of a folder without a model.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

/// Whether the model reads texts byte for byte, behind a begin token.
bool reads_bytes(const ModelConfig& config);

}  // namespace ferry::engine
