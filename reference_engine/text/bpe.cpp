#include "text/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <utility>

#include "support/utf8.hpp"

namespace ferry::engine {

Bpe::Bpe(std::unordered_map<std::string, std::uint32_t> tokens, const std::vector<Merge>& merges,
         const Options& options)
    : options_(options) {
  tokens_.reserve(tokens.size());
  for (auto& [text, id] : tokens) tokens_.emplace(text, id);
  merges_.reserve(merges.size());
  for (const Merge& m : merges) {  // of equal pairs, the one with the lowest rank counts
    const auto [at, fresh] = merges_.try_emplace(pair(m.left, m.right), Made{m.rank, m.made});
    if (!fresh && m.rank < at->second.rank) at->second = {m.rank, m.made};
  }
  if (!options_.byte_fallback) return;
  for (std::uint32_t b = 0; b < 256; ++b) bytes_.push_back(find(fmt::format("<0x{:02X}>", b)).value_or(none));
}

std::optional<std::uint32_t> Bpe::find(std::string_view token) const {
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) return std::nullopt;
  return found->second;
}

void Bpe::encode(std::string_view word, std::vector<std::uint32_t>& out) const {
  if (options_.whole_words) {
    if (const auto whole = find(word)) {
      out.push_back(*whole);
      return;
    }
  }
  thread_local std::vector<Symbol> symbols;
  begin(word, symbols);
  if (symbols.empty()) return;
  merge(symbols);
  for (std::uint32_t at = 0; at != none; at = symbols[at].behind) out.push_back(symbols[at].token);
}

void Bpe::begin(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  bool unknown = false;  // pending; byte tokens do not end its run, as in Hugging Face's library
  const auto push = [&](std::uint32_t token) {
    const auto at = static_cast<std::uint32_t>(symbols.size());
    if (at > 0) symbols.back().behind = at;
    symbols.push_back({token, at == 0 ? none : at - 1, none});
  };
  for (std::size_t at = 0; at < word.size();) {
    std::size_t end = at;
    if (options_.by_bytes) {
      ++end;
    } else {
      next_character(word, end);
    }
    const std::string_view character = word.substr(at, end - at);
    at = end;
    if (const auto known = find(character)) {
      if (std::exchange(unknown, false)) push(*options_.unknown);
      push(*known);
      continue;
    }
    const auto byte_token = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
    if (options_.byte_fallback &&
        std::all_of(character.begin(), character.end(), [&](char c) { return byte_token(c) != none; })) {
      for (const char c : character) push(byte_token(c));
    } else if (options_.unknown) {
      if (unknown && !options_.fuse_unknown) push(*options_.unknown);
      unknown = true;
    }
  }
  if (unknown) push(*options_.unknown);
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
  struct Candidate {
    std::uint32_t rank, at, left, right;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  thread_local std::vector<Candidate> heap;
  heap.clear();
  const auto offer = [&](std::uint32_t at) {
    const std::uint32_t next = at == none ? none : symbols[at].behind;
    if (next == none) return;
    const auto found = merges_.find(pair(symbols[at].token, symbols[next].token));
    if (found == merges_.end()) return;
    heap.push_back({found->second.rank, at, symbols[at].token, symbols[next].token});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::uint32_t at = 0; at + 1 < symbols.size(); ++at) offer(at);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.at];
    // One of the two may have been merged since.
    if (left.token != best.left || left.behind == none || symbols[left.behind].token != best.right) continue;
    Symbol& right = symbols[left.behind];
    left.token = merges_.find(pair(best.left, best.right))->second.token;
    right.token = none;
    left.behind = right.behind;
    if (left.behind != none) symbols[left.behind].before = best.at;
    offer(left.before);
    offer(best.at);
  }
}

std::vector<Bpe::Merge> merges_of_ranks(const std::unordered_map<std::string, std::uint32_t>& tokens) {
  std::vector<Bpe::Merge> all;
  for (const auto& [text, id] : tokens) {
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = tokens.find(text.substr(0, cut));
      if (left == tokens.end()) continue;
      const auto right = tokens.find(text.substr(cut));
      if (right != tokens.end()) all.push_back({left->second, right->second, id, id});
    }
  }
  return all;
}

}  // namespace ferry::engine
