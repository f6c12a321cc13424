/// @file
/// What tokenizers of byte pairs are made of, whatever file they come from.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/regex.hpp"
#include "text/tokenizer.hpp"

namespace ferry::engine {

/// A piece of a text on its way to tokens.
struct TextPiece {
  std::string text;
  bool first = false;  ///< of the whole text
};

/// Changes a text before it is split.
using Normalizer = std::function<std::string(std::string text)>;
/// The text after all of them, in order. Throws InputError for a text that grows to more than 32 times its size and 64 KiB.
std::string normalized(std::string_view text, const std::vector<Normalizer>& all);
/// Splits a piece, or changes it: appends what becomes of it.
using Splitter = std::function<void(const TextPiece& piece, std::vector<TextPiece>& out)>;

/// How tokens' texts become bytes.
struct TokenText {
  bool byte_characters = false;     ///< each byte is written as one of 256 printable characters: GPT-2's way
  bool byte_names = false;          ///< "<0x0A>" is a byte
  std::string blank;                ///< what stands for " "; empty: " " itself
  bool begins_with_blank = false;   ///< the first blank is none of the text's
  bool begins_with_blanks = false;  ///< none of the first token's blanks is the text's
};

struct BpeParts {
  std::string kind;
  Bpe bpe;
  AddedTokens added;
  std::vector<Normalizer> normalizers;
  std::vector<Splitter> splitters;
  TokenText text;
  std::vector<std::uint32_t> before, behind;  ///< tokens around a whole text
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts);

/// Bytes in GPT-2's characters: those that are printable in Latin-1 as themselves, the others as characters from U+0100 on.
std::string byte_characters(std::string_view bytes);
/// The bytes again; nothing where a character stands for no byte.
std::optional<std::string> bytes_of_characters(std::string_view text);

/// What becomes of the matches of an expression.
enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };
Splitter split_by(std::shared_ptr<const Regex> regex, SplitBehavior behavior, bool invert);
/// Each byte becomes its character. `blank`: a blank goes before a piece that does not begin with one.
Splitter to_byte_characters(bool blank);

/// "nfc", "nfd", "nfkc" or "nfkd".
Normalizer unicode_form(const std::string& name);
/// Replaces every match by `with`.
Normalizer replaced(std::shared_ptr<const Regex> regex, const std::string& with);

/// Expressions that several tokenizers share.
inline constexpr const char* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace ferry::engine
