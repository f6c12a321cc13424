/// @file
/// What SentencePiece's library takes on trust in a model's file.
#pragma once
#include <string>
#include <string_view>

namespace ferry::engine {

/// Throws InputError for a model that the library would end the process over, or read past its end: pieces that are empty,
/// pieces with a zero byte that have to go into a trie, and tables of replaced characters (`precompiled_charsmap`) that lead
/// outside themselves. The library follows those tables without looking (0.1.97; its issue 1269). Of BPE a piece that is a zero
/// byte is nothing special, and models have it (its issue 1308).
void check_sentence_piece(std::string_view model, const std::string& where);

}  // namespace ferry::engine
