/// @file
/// Texts as a model's tokens, for models whose tokenizer nobody here has.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace ferry::engine {

/// A text on each line that has any: numbers between blanks or commas, or a JSON list. Throws InputError that names the line.
std::vector<std::vector<std::uint32_t>> read_token_ids(const std::string& file);

}  // namespace ferry::engine
