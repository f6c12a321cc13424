/// @file
/// Models of SentencePiece, by its library.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/tokenizer.hpp"

namespace ferry::engine {

/// What stands around texts, and the tokens that are found in them before the library sees them.
struct SentencePieceOptions {
  std::vector<AddedToken> added;
  std::vector<std::uint32_t> before, behind;  ///< around a whole text
  bool begins = true;                         ///< `before` is the model's own begin token, if it has one
  bool ends = false;                          ///< `behind` is the model's own end token, if it has one
};

/// tokenizer.model. Throws InputError for a file that the library cannot read.
std::unique_ptr<Tokenizer> read_sentence_piece(const std::filesystem::path& path, const SentencePieceOptions& options);

/// A vocabulary in the words of a model file, from which the library can read it.
struct PieceTable {
  std::vector<std::string> texts;
  std::vector<double> scores;
  std::vector<std::uint32_t> types;           ///< 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::optional<std::uint32_t> unknown = {};  ///< the unknown token, whatever its type; absent: the first of that type
  bool blank_before = true;                   ///< a text gets a blank in front
};
std::unique_ptr<Tokenizer> sentence_piece_of(const PieceTable& pieces, const std::string& where,
                                             const SentencePieceOptions& options);

}  // namespace ferry::engine
