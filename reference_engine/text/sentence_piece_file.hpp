/// @file
/// What SentencePiece's library takes on trust in a model's file.
#pragma once
#include <string>
#include <string_view>

namespace ferry::engine {

/// Throws InputError for a model over which the library would end the process, or past whose end it would read: with empty
/// pieces, with a zero byte in a piece that has to go into a trie, or with a table of replaced characters
/// (`precompiled_charsmap`) that leads outside itself. The library follows these tables without looking (0.1.97; its issue
/// 1269). In BPE, a piece that is a zero byte is nothing special, and models have it (its issue 1308).
void check_sentence_piece(std::string_view model, const std::string& where);

}  // namespace ferry::engine
