/// @file
/// tokenizer.json, as Hugging Face's tokenizers write it.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace ferry::engine {

/// Tokens around a whole text, by their texts.
struct AroundText {
  std::vector<std::string> before, behind;
};

/// `around`: where the file's own post-processor puts nothing around a text. Throws InputError, naming the field, for what is
/// damaged or of a kind that is not supported: models other than BPE, and parts that change a text in a way that nobody here
/// knows; or if the file lacks a token of `around`.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& path, const AroundText& around = {});

}  // namespace ferry::engine
