#include "text/added_tokens.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "support/errors.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t nowhere = 0;  // the root's number, as no step leads to the root
/// How many bytes may be compared with tokens: a fixed number, and so many for each byte of the text. Real tokenizers need far
/// fewer.
constexpr std::size_t most_compared = std::size_t{1} << 26U, most_compared_each = 64;

bool is_word(std::uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool is_space(std::uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// Where the character before byte `end` begins.
std::size_t before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U) --at;
  return at;
}

std::uint32_t character_at(std::string_view text, std::size_t at) {
  return next_character(text, at);
}

}  // namespace

AddedTokens::AddedTokens() : nodes_(1) {}

void AddedTokens::add(const AddedToken& token) {
  const std::string& pattern = token.pattern.empty() ? token.text : token.pattern;
  if (pattern.empty()) return;
  std::uint32_t node = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t next = step(node, byte);
    if (next == nowhere) {
      next = static_cast<std::uint32_t>(nodes_.size());
      auto& all = nodes_[node].next;
      all.insert(std::lower_bound(all.begin(), all.end(), std::pair{byte, 0U}), {byte, next});
      nodes_.emplace_back();
    }
    node = next;
  }
  if (nodes_[node].token >= 0) {
    tokens_[static_cast<std::size_t>(nodes_[node].token)] = token;
    return;
  }
  nodes_[node].token = static_cast<std::int64_t>(tokens_.size());
  tokens_.push_back(token);
}

std::uint32_t AddedTokens::step(std::uint32_t node, unsigned char byte) const {
  const auto& all = nodes_[node].next;
  const auto found = std::lower_bound(all.begin(), all.end(), std::pair{byte, 0U});
  return found != all.end() && found->first == byte ? found->second : nowhere;
}

const AddedToken* AddedTokens::find(std::uint32_t id) const {
  const auto found = std::find_if(tokens_.begin(), tokens_.end(), [&](const AddedToken& t) { return t.id == id; });
  return found == tokens_.end() ? nullptr : &*found;
}

const AddedToken* AddedTokens::find(std::string_view text) const {
  const auto found = std::find_if(tokens_.begin(), tokens_.end(), [&](const AddedToken& t) { return t.text == text; });
  return found == tokens_.end() ? nullptr : &*found;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text,
                                                  const std::function<bool(const AddedToken&)>& wanted) const {
  std::vector<Part> all;
  std::size_t done = 0, compared = 0;
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    std::uint32_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      node = step(node, static_cast<unsigned char>(text[i]));
      if (node == nowhere) break;
      if (++compared > most_compared + most_compared_each * text.size()) {
        throw InputError(fmt::format(
            "the tokenizer's added tokens agree with so much of a text of {} bytes that it takes too long to "
            "find them: expected shorter ones",
            text.size()));
      }
      const std::int64_t token = nodes_[node].token;
      if (token >= 0 && wanted(tokens_[static_cast<std::size_t>(token)])) {
        longest = &tokens_[static_cast<std::size_t>(token)];
      }
    }
    if (longest == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + longest->size();
    at = end;
    if (longest->single_word) {
      const bool touches_left = begin > 0 && is_word(character_at(text, before(text, begin)));
      const bool touches_right = end < text.size() && is_word(character_at(text, end));
      if (touches_left || touches_right) continue;
    }
    while (longest->strips_left && begin > done && is_space(character_at(text, before(text, begin)))) {
      begin = std::max(before(text, begin), done);
    }
    while (longest->strips_right && end < text.size() && is_space(character_at(text, end))) next_character(text, end);
    if (begin > done) all.push_back({text.substr(done, begin - done), std::nullopt});
    all.push_back({text.substr(begin, end - begin), longest->id});
    done = end;  // the next token may also lie in white space that this one took
  }
  if (done < text.size()) all.push_back({text.substr(done), std::nullopt});
  return all;
}

}  // namespace ferry::engine
