/// @file
/// Files of ranks, as tiktoken has them, and the expressions that their texts are split by.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/tokenizer.hpp"

namespace ferry::engine {

/// How texts are split into words.
struct WordRules {
  std::vector<std::string> expressions = {};  ///< one after another; each match is a word
  bool whole_words = false;                   ///< `Bpe::Options::whole_words`
  bool begins = false;                        ///< texts have a begin token where the file does not say
  std::string form = {};  ///< of Unicode, which llama.cpp leaves out and the makers' tokenizers have
};
/// By the name of a pre-tokenizer of llama.cpp, or of a tiktoken encoding; null if it is not known.
const WordRules* word_rules(const std::string& name);
/// All names, for messages.
std::string known_word_rules();

/// NAME.tiktoken: on each line a token in base64 and its rank, which is its id. Throws InputError that names the line.
std::unique_ptr<Tokenizer> read_tiktoken(const std::filesystem::path& path, const WordRules& rules,
                                         const std::vector<AddedToken>& added);
/// The file does not say how texts are split: that comes from its name (cl100k_base, o200k_base, qwen, ...). Throws InputError
/// for a name that is not known, too.
std::unique_ptr<Tokenizer> read_tiktoken(const std::filesystem::path& path, const std::vector<AddedToken>& added);

}  // namespace ferry::engine
