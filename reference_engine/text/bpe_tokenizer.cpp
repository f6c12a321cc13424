#include "text/bpe_tokenizer.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "support/errors.hpp"
#include "support/utf8.hpp"

namespace ferry::engine {
namespace {

/// The character that stands for each byte [256], and the reverse.
struct ByteAlphabet {
  std::array<std::uint32_t, 256> character{};
  std::unordered_map<std::uint32_t, char> byte;

  ByteAlphabet() {
    std::uint32_t next = 256;
    for (std::uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<char>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet one;
  return one;
}

/// The byte of a token such as "<0x0A>".
std::optional<char> named_byte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  std::uint32_t value = 0;
  for (const char c : token.substr(3, 2)) {
    const auto digit = std::string_view("0123456789ABCDEFabcdef").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value * 16 + static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
  }
  return static_cast<char>(value);
}

/// The size that a text may grow to. Decomposed characters take at most 11 times as many bytes, and turning bytes into
/// characters doubles that; a tokenizer whose steps all double the text would fill the memory.
std::size_t most_grown(std::size_t size) {
  return 32 * size + (64U << 10U);
}
void check_growth(std::size_t size, std::size_t most) {
  if (size > most) throw InputError("a text cannot be split: the tokenizer's steps make it too long");
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts) : p_(std::move(parts)) {
    for (const auto& [text, id] : p_.bpe.tokens()) slot(id) = text;
    special_.resize(names_.size());
    hidden_.resize(names_.size());
    for (const AddedToken& t : p_.added.all()) {
      slot(t.id) = t.pattern.empty() ? t.text : t.pattern;  // decoded as it is searched for, like the library
      special_.resize(names_.size());
      hidden_.resize(names_.size());
      special_[t.id] = t.special;
      // The library hides special tokens by their text, so that one whose text was normalized is shown.
      hidden_[t.id] = t.special && (t.pattern.empty() || t.pattern == t.text);
    }
  }

  [[nodiscard]] std::string kind() const override { return p_.kind; }
  [[nodiscard]] std::uint32_t size() const override { return static_cast<std::uint32_t>(names_.size()); }
  [[nodiscard]] std::vector<std::uint32_t> begin() const override { return p_.before; }
  [[nodiscard]] bool begins_with_blank() const override { return p_.text.begins_with_blank; }
  [[nodiscard]] bool is_special(std::uint32_t token) const override {
    return token < special_.size() && special_[token];
  }
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view token) const override {
    if (const AddedToken* added = p_.added.find(token)) return added->id;
    return p_.bpe.find(token);
  }

  [[nodiscard]] std::vector<std::uint32_t> encode(std::string_view given, bool whole, bool names) const override {
    const std::string text = valid_utf8(given);
    std::vector<std::uint32_t> out;
    if (whole) out = p_.before;
    bool first = true;
    for (const AddedTokens::Part& part :
         p_.added.split(text, [names](const AddedToken& t) { return !t.normalized && (names || !t.special); })) {
      if (part.token) {
        out.push_back(*part.token);
      } else {
        encode_normalized(part.text, first, names, out);
      }
      first = false;
    }
    if (whole) out.insert(out.end(), p_.behind.begin(), p_.behind.end());
    return out;
  }

  [[nodiscard]] std::string decode(std::span<const std::uint32_t> tokens, bool special) const override {
    std::string out, run;  // byte tokens in a row are decoded together, or replaced
    bool begin = true;
    const auto end_run = [&] {
      const bool valid = valid_utf8(run) == run;
      for (std::size_t i = 0; !valid && i < run.size(); ++i) append_character(out, replacement_character);
      if (valid) out += run;
      run.clear();
    };
    for (const std::uint32_t token : tokens) {
      if (token >= names_.size() || (!special && hidden_[token])) continue;
      const auto byte = p_.text.byte_names ? named_byte(names_[token]) : std::nullopt;
      if (byte) {
        run += *byte;
      } else {
        end_run();
        out += begin && p_.text.begins_with_blanks ? without_blanks(names_[token]) : bytes(token);
      }
      begin = false;
    }
    end_run();
    if (p_.text.begins_with_blank && !p_.text.begins_with_blanks && out.starts_with(' ')) out.erase(0, 1);
    return valid_utf8(out);
  }

  [[nodiscard]] std::string bytes(std::uint32_t token) const override {
    if (token >= names_.size()) return "";
    const std::string& name = names_[token];
    if (p_.text.byte_characters) return bytes_of_characters(name).value_or(name);
    if (p_.text.byte_names) {
      if (const auto byte = named_byte(name)) return {*byte};
    }
    return with_blanks(name, " ");
  }

 private:
  [[nodiscard]] std::string without_blanks(const std::string& name) const { return with_blanks(name, ""); }
  [[nodiscard]] std::string with_blanks(const std::string& name, const char* blank) const {
    if (p_.text.blank.empty()) return name;
    std::string out;
    for (std::size_t at = 0; at < name.size();) {
      const bool is_blank = name.compare(at, p_.text.blank.size(), p_.text.blank) == 0;
      is_blank ? out += blank : out += name[at];
      at += is_blank ? p_.text.blank.size() : 1;
    }
    return out;
  }

  std::string& slot(std::uint32_t id) {
    if (names_.size() <= id) names_.resize(id + 1U);
    return names_[id];
  }

  void encode_normalized(std::string_view part, bool first, bool names, std::vector<std::uint32_t>& out) const {
    const std::string text = normalized(part, p_.normalizers);
    for (const AddedTokens::Part& own :
         p_.added.split(text, [names](const AddedToken& t) { return t.normalized && (names || !t.special); })) {
      if (own.token) {
        out.push_back(*own.token);
      } else {
        encode_words(std::string(own.text), first, out);
      }
      first = false;
    }
  }

  void encode_words(std::string text, bool first, std::vector<std::uint32_t>& out) const {
    const std::size_t most = most_grown(text.size());
    std::vector<TextPiece> pieces{{std::move(text), first}}, next;
    for (const Splitter& split : p_.splitters) {
      next.clear();
      std::size_t size = 0;
      for (const TextPiece& piece : pieces) size += piece.text.size();
      check_growth(size, most);
      for (const TextPiece& piece : pieces) {
        if (!piece.text.empty()) split(piece, next);
      }
      pieces.swap(next);
    }
    for (const TextPiece& piece : pieces) p_.bpe.encode(piece.text, out);
  }

  BpeParts p_;
  std::vector<std::string> names_;  ///< by id
  std::vector<bool> special_, hidden_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts) {
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

std::string byte_characters(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) append_character(out, alphabet().character[static_cast<unsigned char>(b)]);
  return out;
}

std::optional<std::string> bytes_of_characters(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto found = alphabet().byte.find(next_character(text, at));
    if (found == alphabet().byte.end()) return std::nullopt;
    out += found->second;
  }
  return out;
}

Splitter split_by(std::shared_ptr<const Regex> regex, SplitBehavior behavior, bool invert) {
  return [=](const TextPiece& piece, std::vector<TextPiece>& out) {
    std::vector<Stretch> parts = regex->split(piece.text), joined;
    for (Stretch& part : parts) part.matched = part.matched != invert;
    bool was_match = false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Stretch part = parts[i];
      const bool to_last =
          !joined.empty() && ((behavior == SplitBehavior::merged_with_previous && part.matched && !was_match) ||
                              (behavior == SplitBehavior::contiguous && part.matched == was_match) ||
                              (behavior == SplitBehavior::merged_with_next && !part.matched && was_match));
      if (to_last) {
        joined.back().end = part.end;
      } else if (behavior != SplitBehavior::removed || !part.matched) {
        joined.push_back(part);
      }
      was_match = part.matched;
    }
    for (const Stretch& part : joined) {
      out.push_back({piece.text.substr(part.begin, part.end - part.begin), piece.first && part.begin == 0});
    }
  };
}

Splitter to_byte_characters(bool blank) {
  return [blank](const TextPiece& piece, std::vector<TextPiece>& out) {
    const bool add = blank && !piece.text.starts_with(' ');
    out.push_back({byte_characters(add ? " " + piece.text : piece.text), piece.first});
  };
}

std::string normalized(std::string_view text, const std::vector<Normalizer>& all) {
  const std::size_t most = most_grown(text.size());
  std::string made(text);
  for (const Normalizer& n : all) {
    made = n(std::move(made));
    check_growth(made.size(), most);
  }
  return made;
}

namespace {

[[noreturn]] void refuse_form(utf8proc_ssize_t error) {
  throw InputError(fmt::format("a text cannot be normalized: {}", utf8proc_errmsg(error)));
}

/// Like utf8proc_map, which takes quadratic time in the number of marks on one letter.
std::string in_unicode_form(const std::string& text, utf8proc_option_t options, bool compose) {
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  std::vector<utf8proc_int32_t> all;
  all.reserve(text.size());
  const auto order = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (utf8proc_ssize_t i = 0; i < size;) {
    utf8proc_int32_t c = 0, parts[32];  // the longest has 18
    const utf8proc_ssize_t bytes = utf8proc_iterate(at + i, size - i, &c);
    if (bytes < 0) refuse_form(bytes);
    int last_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, parts, 32, options, &last_class);
    if (count < 0 || count > 32) refuse_form(count < 0 ? count : UTF8PROC_ERROR_OVERFLOW);
    all.insert(all.end(), parts, parts + count);
    i += bytes;
  }
  for (auto begin = all.begin(); begin != all.end();) {
    begin = std::find_if(begin, all.end(), [&](utf8proc_int32_t c) { return order(c) != 0; });
    const auto end = std::find_if(begin, all.end(), [&](utf8proc_int32_t c) { return order(c) == 0; });
    std::stable_sort(begin, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) { return order(a) < order(b); });
    begin = end;
  }
  auto length = static_cast<utf8proc_ssize_t>(all.size());
  if (compose) {
    length = utf8proc_normalize_utf32(all.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) refuse_form(length);
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto count = utf8proc_encode_char(all[static_cast<std::size_t>(i)], bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
  }
  return out;
}

}  // namespace

Normalizer unicode_form(const std::string& name) {
  const bool compose = name.back() == 'c', compatible = name.size() == 4;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  return [=](std::string text) {
    const bool ascii =
        std::none_of(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0x80U) != 0; });
    return ascii ? text : in_unicode_form(text, options, compose);
  };
}

Normalizer replaced(std::shared_ptr<const Regex> regex, const std::string& with) {
  return [=](std::string text) {
    std::string out;
    for (const Stretch& part : regex->split(text)) {
      out += part.matched ? with : text.substr(part.begin, part.end - part.begin);
    }
    return out;
  };
}

}  // namespace ferry::engine
