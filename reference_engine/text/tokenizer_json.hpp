/// @file
/// tokenizer.json, as Hugging Face's tokenizers write it.
#pragma once
#include <filesystem>
#include <memory>

#include "text/tokenizer.hpp"

namespace ferry::engine {

/// Throws InputError, naming the field, for what is damaged or of a kind that is not supported: models other than BPE, and
/// parts that change a text in a way that nobody here knows.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& path);

}  // namespace ferry::engine
