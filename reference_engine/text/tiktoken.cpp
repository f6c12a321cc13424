#include "text/tiktoken.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "support/errors.hpp"
#include "support/text_file.hpp"
#include "text/bpe_tokenizer.hpp"

namespace ferry::engine {
namespace {

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  std::uint32_t bits = 0, held = 0;
  for (const char c : text) {
    const std::size_t value = digits.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    held = held << 6U | static_cast<std::uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out += static_cast<char>(held >> bits & 0xffU);
  }
  return out;
}

std::unordered_map<std::string, std::uint32_t> read_ranks(const std::filesystem::path& path) {
  constexpr std::size_t longest = 4096;  // limited, since every way to cut a token in two is tried
  std::istringstream file(read_whole(path));
  file.exceptions(std::ios::badbit);  // a stream would hide a lack of memory
  std::unordered_map<std::string, std::uint32_t> ranks;
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::size_t blank = line.find(' ');
    std::uint32_t rank = most_tokens;
    const auto token = blank == std::string::npos ? std::nullopt : from_base64(std::string_view(line).substr(0, blank));
    if (token) {
      const char* end = line.data() + line.size();
      const auto [at, error] = std::from_chars(line.data() + blank + 1, end, rank);
      if (error != std::errc() || at != end) rank = most_tokens;
    }
    if (!token || token->empty() || token->size() > longest || rank >= most_tokens ||
        !ranks.emplace(*token, rank).second) {
      throw InputError(
          fmt::format("{}: line {} is \"{:.60}\", expected a token in base64 that is new, of {} bytes at most, and its "
                      "rank below 2^22",
                      path.string(), number, line, longest));
    }
  }
  if (ranks.empty()) throw InputError(path.string() + ": has no tokens");
  return ranks;
}

}  // namespace

std::unique_ptr<Tokenizer> read_tiktoken(const std::filesystem::path& path, const WordRules& rules,
                                         const std::vector<AddedToken>& added) {
  auto ranks = read_ranks(path);
  BpeParts parts;
  parts.kind = path.filename().string();
  Bpe::Options options;
  options.by_bytes = options.whole_words = true;
  const auto merges = merges_of_ranks(ranks);
  parts.bpe = Bpe(std::move(ranks), merges, options);
  if (!rules.form.empty()) parts.normalizers.push_back(unicode_form(rules.form));
  for (const std::string& e : rules.expressions) {
    parts.splitters.push_back(
        split_by(std::make_shared<Regex>(e, path.string(), Dialect::rust), SplitBehavior::isolated, false));
  }
  for (const AddedToken& t : added) parts.added.add(t);
  return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> read_tiktoken(const std::filesystem::path& path, const std::vector<AddedToken>& added) {
  const WordRules* known = word_rules(path.stem().string());
  if (known == nullptr) {
    throw InputError(fmt::format("{}: nothing says how its texts are split, expected a file named as one of {}",
                                 path.string(), known_word_rules()));
  }
  return read_tiktoken(path, *known, added);
}

}  // namespace ferry::engine
