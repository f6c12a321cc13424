/// @file
/// Byte-pair encoding of one word.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ferry::engine {

/// A word begins as its characters, or bytes; the pair of neighbours with the lowest rank becomes one token, the leftmost
/// first among equals, until no pair is known.
///
/// Source: Sennrich et al. 2016, section 3.2; what is unknown is as Hugging Face's tokenizers have it. O(n log n).
class Bpe {
 public:
  struct Options {
    bool whole_words = false;  ///< a word that is a token is not merged: `ignore_merges`
    bool byte_fallback =
        false;              ///< an unknown character becomes tokens "<0x00>" to "<0xFF>", if all of its bytes have one
    bool by_bytes = false;  ///< words begin as bytes and not as characters
    bool fuse_unknown = false;             ///< neighbours that are unknown become one `unknown`
    std::optional<std::uint32_t> unknown;  ///< none: what is unknown is left out
  };
  struct Merge {
    std::uint32_t left, right, rank, made;
  };

  Bpe() = default;
  /// `tokens`: each with its id.
  Bpe(std::unordered_map<std::string, std::uint32_t> tokens, const std::vector<Merge>& merges, const Options& options);

  /// Appends the tokens of a word.
  void encode(std::string_view word, std::vector<std::uint32_t>& out) const;

  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view token) const;
  [[nodiscard]] const auto& tokens() const { return tokens_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  struct Made {
    std::uint32_t rank, token;
  };
  struct Symbol {
    std::uint32_t token;
    std::uint32_t before, behind;  ///< neighbours, or none
  };
  static constexpr std::uint32_t none = 0xffffffffU;
  static std::uint64_t pair(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32U | right; }

  void begin(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge(std::vector<Symbol>& symbols) const;

  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> tokens_;
  std::unordered_map<std::uint64_t, Made> merges_;
  std::vector<std::uint32_t> bytes_;  ///< [256] the tokens of single bytes, where there is fallback
  Options options_;
};

/// All merges of a vocabulary whose ids are ranks, as tiktoken's: any two tokens that make one together.
std::vector<Bpe::Merge> merges_of_ranks(const std::unordered_map<std::string, std::uint32_t>& tokens);

}  // namespace ferry::engine
