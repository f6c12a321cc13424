// Models with which SentencePiece's library would read outside of the file, or end the process.
#include "text/sentence_piece_file.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"
#include "text/tokenizer.hpp"

using namespace ferry::engine;
using namespace ferry::test;

namespace {

std::string field(unsigned number, const std::string& text) {
  REQUIRE(text.size() < 16384);
  std::string out(1, static_cast<char>(number << 3U | 2U));
  if (text.size() >= 128) out += static_cast<char>(text.size() % 128 | 128U);
  return out + static_cast<char>(text.size() >= 128 ? text.size() / 128 : text.size()) + text;
}
std::string piece(const std::string& text, char type = 1) {
  return field(1, field(1, text) + std::string("\x18", 1) + type);
}

/// A trie that only has "a", with the text at 5. A unit's label is its low byte; bit 8 says that there is a value at its own
/// place xor its offset (from bit 10 on); values have bit 31.
struct Charsmap {
  std::array<std::uint32_t, 256> units{};
  std::string texts = std::string("first\0b\0", 8);
  std::uint32_t bytes = 1024;

  Charsmap() {
    for (std::uint32_t i = 1; i < 256; ++i) units[i] = 0x7fU;  // no byte leads there: all have another label
    units[0x7f] = 0;
    units['a'] = 'a' | 1U << 8U | 1U << 10U;
    units['a' ^ 1U] = 1U << 31U | 6U;
  }
  [[nodiscard]] std::string text() const {
    std::string out(4 + sizeof(units), '\0');
    std::memcpy(out.data(), &bytes, 4);
    std::memcpy(out.data() + 4, units.data(), sizeof(units));
    return out + texts;
  }
};

std::string model(const std::string& normalizer, const std::string& more = "") {
  return piece("<unk>", 2) + piece("a") + piece("b") + piece("\xe2\x96\x81") + more + field(3, normalizer);
}

std::string refused(const std::string& bytes) {
  return refusal("m: not a SentencePiece model", [&] { check_sentence_piece(bytes, "m"); });
}
std::string refused(const Charsmap& map) {
  return refused(model(field(2, map.text())));
}

}  // namespace

TEST_CASE("a table of replaced characters by hand is what the library takes for one") {
  const TemporaryFolder folder;
  write_file(folder.path() / "tokenizer.model", model(field(1, "mine") + field(2, Charsmap().text())));
  const auto tokenizer = open_tokenizer(folder.path() / "tokenizer.model");
  REQUIRE(tokenizer != nullptr);
  const auto ids = tokenizer->encode("ab", false, false);
  REQUIRE(ids.size() == 3);
  CHECK(ids[1] == 2);  // "a" has become "b"
  CHECK(ids[2] == 2);
}

TEST_CASE("what leads outside of a SentencePiece model's file is refused") {
  CHECK_NOTHROW(check_sentence_piece(model(""), "m"));
  CHECK_NOTHROW(check_sentence_piece(model(field(2, "")), "m"));
  CHECK_NOTHROW(check_sentence_piece(model(field(2, Charsmap().text())), "m"));
  for (const std::uint32_t offset : {256U, 1U << 20U, (1U << 21U) - 1}) {
    Charsmap map;
    map.units[3] = offset << 10U;
    CHECK(says(refused(map), {"leads outside itself"}));
    map.units[3] |= 1U << 31U;  // a value, after which nothing may follow
    CHECK_NOTHROW(check_sentence_piece(model(field(2, map.text())), "m"));
  }
  Charsmap far;
  far.units[3] = 1U << 10U | 1U << 9U;  // the offset is multiplied by 256
  CHECK(says(refused(far), {"leads outside itself"}));
  Charsmap value;
  value.units['a' ^ 1U] = 1U << 31U | 8U;
  CHECK(says(refused(value), {"names a text that it does not have"}));
  Charsmap open;
  open.texts = "first";
  CHECK(says(refused(open), {"texts without an end"}));
  open.texts = "";
  CHECK(says(refused(open), {"texts without an end"}));
  for (const std::uint32_t bytes : {0U, 1U, 1023U, 2000U, ~0U, ~3U}) {
    Charsmap map;
    map.bytes = bytes;
    CHECK(says(refused(map), {"no such size"}));
  }
  Charsmap half;
  half.bytes = 512;  // whose units lead into the other half
  CHECK(says(refused(half), {"leads outside itself"}));
  CHECK(says(refused(model(field(2, "abc"))), {"no such size"}));
  CHECK(says(refused(model("") + field(5, field(2, "abc"))), {"no such size"}));  // to undo it
}

TEST_CASE("a piece with a zero byte is refused where the library makes a trie of it, and no other") {
  const std::string zero = piece(std::string("\0", 1)), bpe = field(2, std::string("\x18\2", 2));
  const TemporaryFolder folder;
  write_file(folder.path() / "tokenizer.model", model("", zero) + bpe);
  const auto tokenizer = open_tokenizer(folder.path() / "tokenizer.model");
  REQUIRE(tokenizer != nullptr);
  CHECK(tokenizer->find(std::string_view("\0", 1)) == 4U);
  const auto ids = tokenizer->encode(std::string_view("a\0b", 3), false, false);
  CHECK(std::vector<std::uint32_t>(ids.end() - 3, ids.end()) == std::vector<std::uint32_t>{1, 4, 2});
  CHECK(says(refused(model("", piece(std::string("\0", 1), 4)) + bpe), {"piece 4 has a zero byte"}));  // user defined
  CHECK(says(refused(model("", zero) + field(2, std::string("\x18\1", 2))), {"piece 4 has a zero byte"}));
}

TEST_CASE("pieces that a trie cannot have, and files that are cut off, are refused") {
  CHECK(says(refused(model("", piece(std::string("\0", 1)))), {"piece 4 has a zero byte"}));
  CHECK(says(refused(model("", piece(std::string("a\0b", 3)))), {"piece 4 has a zero byte"}));
  CHECK(says(refused(model("", piece(""))), {"piece 4 is empty"}));
  CHECK(says(refused(model("", field(1, ""))), {"piece 4 is empty"}));
  const std::string whole = model(field(2, Charsmap().text()));
  std::size_t refusals = 0;
  for (std::size_t n = 0; n < whole.size(); ++n) {
    try {
      check_sentence_piece(whole.substr(0, n), "m");
    } catch (const InputError&) {
      ++refusals;
    }
  }
  CHECK(refusals == whole.size() - 5);  // all but five cuts, which fall between fields: around each of four pieces
  CHECK(says(refused("\x0b"), {"a field of a kind"}));
  CHECK(says(refused(std::string(12, '\xff')), {"more than 64 bits"}));
}
