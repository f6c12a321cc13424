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

  /// False at the end. `text` is of fields with a length, and empty for numbers.
  bool next(std::uint32_t& field, std::string_view& text) {
    if (left_.empty()) return false;
    const std::uint64_t key = number();
    field = static_cast<std::uint32_t>(key >> 3U);
    text = {};
    switch (key & 7U) {
      case 0:
        static_cast<void>(number());
        break;
      case 1:
        static_cast<void>(take(8));
        break;
      case 2:
        text = take(number());
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

/// A double array of Darts-clone, as the library follows it: from unit to unit by `position ^ offset ^ byte`. Every step
/// from every unit has to stay inside, and every value to name a text behind it.
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
  std::uint32_t field = 0;
  for (std::string_view text; m.next(field, text);) {
    if (field == 2) check_charsmap(text, where);  // precompiled_charsmap
  }
}

void check_piece(std::string_view piece, const std::string& where, std::uint64_t number) {
  Message m(piece, where);
  std::uint32_t field = 0;
  bool has_text = false;
  for (std::string_view text; m.next(field, text);) {
    if (field != 1) continue;  // piece
    has_text = !text.empty();
    if (text.find('\0') == std::string_view::npos) continue;
    throw InputError(fmt::format("{}: not a SentencePiece model: piece {} has a zero byte", where, number));
  }
  if (!has_text) throw InputError(fmt::format("{}: not a SentencePiece model: piece {} is empty", where, number));
}

}  // namespace

void check_sentence_piece(std::string_view model, const std::string& where) {
  Message m(model, where);
  std::uint32_t field = 0;
  std::uint64_t pieces = 0;
  for (std::string_view text; m.next(field, text);) {
    if (field == 1) check_piece(text, where, pieces++);           // pieces
    if (field == 3 || field == 5) check_normalizer(text, where);  // normalizer_spec, denormalizer_spec
  }
}

}  // namespace ferry::engine
