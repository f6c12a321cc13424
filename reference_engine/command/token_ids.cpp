#include "command/token_ids.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "support/errors.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {

std::vector<std::vector<std::uint32_t>> read_token_ids(const std::string& file) {
  const std::string text = read_text("--token-ids", file);
  std::vector<std::vector<std::uint32_t>> prompts;
  std::istringstream lines(text);
  lines.exceptions(std::ios::badbit);  // a stream would hide a lack of memory
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    const auto brackets = std::count_if(line.begin(), line.end(), [](char c) { return c == '[' || c == ']'; });
    const std::size_t first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r,");
    if (brackets > 0 && (brackets != 2 || line[first] != '[' || line[last] != ']')) {
      throw InputError(
          fmt::format("--token-ids {}: line {}: expected one prompt on each line, as numbers, with [ ] around all of "
                      "them or without",
                      file, number));
    }
    for (char& c : line) c = c == ',' || c == '[' || c == ']' || c == '\r' ? ' ' : c;
    std::istringstream words(line);
    words.exceptions(std::ios::badbit);
    std::vector<std::uint32_t> tokens;
    for (std::string word; words >> word;) {
      std::uint32_t token = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
      if (error != std::errc() || end != word.data() + word.size()) {
        throw InputError(fmt::format("--token-ids {}: line {} has \"{:.40}\", expected whole numbers from 0 to 2^32-1",
                                     file, number, word));
      }
      tokens.push_back(token);
    }
    if (!tokens.empty()) prompts.push_back(std::move(tokens));
  }
  if (prompts.empty())
    throw InputError(fmt::format("--token-ids {}: has no tokens, expected a prompt on each line", file));
  return prompts;
}

}  // namespace ferry::engine
