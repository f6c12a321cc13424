/// @file
/// What SentencePiece's library takes on trust in a model's file.
#pragma once
#include <string>
#include <string_view>

namespace ferry::engine {

/// Throws InputError for a model that the library would end the process over, or read past its end: pieces that are empty or
/// have a zero byte, and tables of replaced characters (`precompiled_charsmap`) that lead outside themselves. The library
/// builds and follows its tries without looking (0.1.97; CVE-2026-1260).
void check_sentence_piece(std::string_view model, const std::string& where);

}  // namespace ferry::engine
