#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

/// What a first byte tells: the length of the character, and the range of its second byte.
struct First {
  unsigned length = 0;  ///< 0: no character begins with this byte
  unsigned char least = 0x80, most = 0xbf;
};

First first_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};  // no overlong forms
  if (byte == 0xed) return {3, 0x80, 0x9f};  // no UTF-16 surrogates
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};  // Unicode ends at U+10FFFF
  return {0};
}

/// How many bytes are valid for the character that begins here, and how many it should have.
struct Found {
  unsigned good, length;
};

Found look(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const First first = first_of(byte(at));
  unsigned good = first.length == 0 ? 0 : 1;
  for (; good > 0 && good < first.length && at + good < text.size(); ++good) {
    const unsigned char next = byte(at + good);
    if (next < (good == 1 ? first.least : 0x80) || next > (good == 1 ? first.most : 0xbf)) break;
  }
  return {good, first.length};
}

}  // namespace

std::uint32_t next_character(std::string_view text, std::size_t& at) {
  const Found found = look(text, at);
  if (found.good == 0 || found.good < found.length) {
    at += found.good == 0 ? 1 : found.good;
    return replacement_character;
  }
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
  std::uint32_t character = byte(0);
  if (found.length > 1) character &= 0x7fU >> found.length;
  for (unsigned i = 1; i < found.length; ++i) character = character << 6U | (byte(i) & 0x3fU);
  at += found.length;
  return character;
}

void append_character(std::string& text, std::uint32_t character) {
  const auto push = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (character < 0x80) {
    push(character);
  } else if (character < 0x800) {
    push(0xc0U | character >> 6U);
    push(0x80U | (character & 0x3fU));
  } else if (character < 0x10000) {
    push(0xe0U | character >> 12U);
    push(0x80U | (character >> 6U & 0x3fU));
    push(0x80U | (character & 0x3fU));
  } else {
    push(0xf0U | character >> 18U);
    push(0x80U | (character >> 12U & 0x3fU));
    push(0x80U | (character >> 6U & 0x3fU));
    push(0x80U | (character & 0x3fU));
  }
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) append_character(out, next_character(text, at));
  return out;
}

std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::size_t at = text.size() - back;
    const auto byte = static_cast<unsigned char>(text[at]);
    if ((byte & 0xc0U) == 0x80U) continue;  // a continuation byte
    const Found found = look(text, at);
    return found.good == back && found.good < found.length ? back : 0;
  }
  return 0;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) next_character(text, at);
  return count;
}

std::string CharacterStream::push(std::string_view bytes) {
  held_.append(bytes);
  const std::size_t ready = held_.size() - unfinished_bytes(held_);
  std::string out = valid_utf8(std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
  return out;
}

std::string CharacterStream::finish() {
  std::string out = valid_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace ferry::engine
