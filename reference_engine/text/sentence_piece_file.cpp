#include "text/sentence_piece_file.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// The fields of one message of protocol buffers, in the file's order.
class Message {
 public:
  Message(std::string_view bytes, const std::string& where) : left_(bytes), where_(where) {}

  struct Field {
    std::uint32_t number = 0;
    std::string_view text;    ///< for fields with a length
    std::uint64_t value = 0;  ///< for whole numbers
  };
  /// False at the end.
  bool next(Field& field) {
    if (left_.empty()) return false;
    const std::uint64_t key = number();
    field = {static_cast<std::uint32_t>(key >> 3U), {}, 0};
    switch (key & 7U) {
      case 0:
        field.value = number();
        break;
      case 1:
        static_cast<void>(take(8));
        break;
      case 2:
        field.text = take(number());
        break;
      case 5:
        static_cast<void>(take(4));
        break;
      default:
        refuse("a field of a kind that it has none of");
    }
    return true;
  }

 private:
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
    refuse("a number of more than 64 bits");
  }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > left_.size()) refuse("a field that goes on behind the file's end");
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  [[noreturn]] void refuse(const char* what) const {
    throw InputError(fmt::format("{}: not a SentencePiece model: {}", where_, what));
  }

  std::string_view left_;
  const std::string& where_;
};

/// Checks a double array of Darts-clone, in which the library steps from unit to unit by `position ^ offset ^ byte`. No step
/// may leave the array, and every value must be the position of a text behind it.
void check_charsmap(std::string_view map, const std::string& where) {
  if (map.empty()) return;  // nothing is replaced
  const auto refuse = [&](const std::string& what) {
    throw InputError(fmt::format("{}: not a SentencePiece model: its table of replaced characters {}", where, what));
  };
  std::uint32_t bytes = 0;
  if (map.size() > sizeof(bytes)) std::memcpy(&bytes, map.data(), sizeof(bytes));
  if (bytes == 0 || bytes % sizeof(bytes) != 0 || bytes > map.size() - sizeof(bytes)) refuse("has no such size");
  const std::string_view texts = map.substr(sizeof(bytes) + bytes);
  if (texts.empty() || texts.back() != '\0') refuse("has texts without an end");
  const std::uint64_t units = bytes / sizeof(bytes);
  const auto unit = [&](std::uint64_t at) {
    std::uint32_t u = 0;
    std::memcpy(&u, map.data() + sizeof(bytes) * (1 + at), sizeof(u));
    return u;
  };
  for (std::uint64_t at = 0; at < units; ++at) {
    const std::uint32_t u = unit(at);
    if (u >> 31U != 0) continue;  // a value: nothing follows it
    const std::uint64_t to = at ^ (std::uint64_t{u >> 10U} << ((u & (1U << 9U)) >> 6U));
    if ((to | 0xffU) >= units) refuse("leads outside itself");
    const bool has_value = (u >> 8U & 1U) != 0;
    if (has_value && (unit(to) & 0x7fffffffU) >= texts.size()) refuse("names a text that it does not have");
  }
}

void check_normalizer(std::string_view spec, const std::string& where) {
  Message m(spec, where);
  for (Message::Field f; m.next(f);) {
    if (f.number == 2) check_charsmap(f.text, where);  // precompiled_charsmap
  }
}

/// Whether the model is of type Unigram, whose pieces all go into a trie.
bool is_unigram(std::string_view model, const std::string& where) {
  constexpr std::uint64_t unigram = 1;  // also the default
  std::uint64_t type = unigram;
  Message m(model, where);
  for (Message::Field f; m.next(f);) {
    if (f.number != 2) continue;  // trainer_spec
    Message spec(f.text, where);
    for (Message::Field g; spec.next(g);) {
      if (g.number == 3) type = g.value;  // model_type
    }
  }
  return type == unigram;
}

void check_piece(std::string_view piece, bool unigram, const std::string& where, std::uint64_t number) {
  constexpr std::uint64_t user_defined = 4;  // these are looked for by a trie in every kind of model
  Message m(piece, where);
  std::string_view text;
  std::uint64_t type = 0;
  for (Message::Field f; m.next(f);) {
    if (f.number == 1) text = f.text;  // piece
    if (f.number == 3) type = f.value;
  }
  const auto refuse = [&](const char* what) {
    throw InputError(fmt::format("{}: not a SentencePiece model: piece {} {}", where, number, what));
  };
  if (text.empty()) refuse("is empty");
  if ((unigram || type == user_defined) && text.find('\0') != std::string_view::npos) refuse("has a zero byte");
}

}  // namespace

void check_sentence_piece(std::string_view model, const std::string& where) {
  const bool unigram = is_unigram(model, where);
  Message m(model, where);
  std::uint64_t pieces = 0;
  for (Message::Field f; m.next(f);) {
    if (f.number == 1) check_piece(f.text, unigram, where, pieces++);     // pieces
    if (f.number == 3 || f.number == 5) check_normalizer(f.text, where);  // normalizer_spec, denormalizer_spec
  }
}

}  // namespace ferry::engine
