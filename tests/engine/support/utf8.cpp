#include "support/utf8.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace ferry::engine;

namespace {

const std::string none = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

TEST_CASE("what is no UTF-8 is replaced by maximal subparts, as the Unicode standard's tables show it") {
  // Tables 3-8 to 3-11 of chapter 3.
  CHECK(valid_utf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41") ==
        none + none + none + none + none + none + none + none + "A");
  CHECK(valid_utf8("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41") ==
        none + none + none + none + none + none + none + none + "A");
  CHECK(valid_utf8("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42") ==
        none + none + none + none + none + "A" + none + none + "B");
  CHECK(valid_utf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41") == none + none + none + none + "A");
  CHECK(valid_utf8("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64") ==
        "a" + none + none + none + "b" + none + "c" + none + none + "d");
}

TEST_CASE("every character goes to bytes and back, and halves of pairs are none") {
  for (std::uint32_t c = 0; c <= 0x110000; c += c < 0x900 ? 1 : 37) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    if (c > 0x10ffff) break;
    std::string text;
    append_character(text, c);
    std::size_t at = 0;
    CHECK(next_character(text, at) == c);
    CHECK(at == text.size());
    CHECK(unfinished_bytes(text) == 0);
    for (std::size_t cut = 1; cut < text.size(); ++cut) CHECK(unfinished_bytes(text.substr(0, cut)) == cut);
  }
  CHECK(count_characters("a\xc3\xa9\xf0\x9f\x98\x80") == 3);
  CHECK(unfinished_bytes("abc") == 0);
  CHECK(unfinished_bytes("\xff") == 0);  // never becomes one
  CHECK(unfinished_bytes("") == 0);
}

TEST_CASE("a stream gives out what the whole text is, however it is cut, and never a part of a character") {
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes;
    for (std::uint_fast32_t n = random() % 20; n > 0; --n) {
      if (random() % 3 == 0) {
        bytes += static_cast<char>(random() % 256);
      } else {
        append_character(bytes,
                         static_cast<std::uint32_t>(random() % 4 == 0 ? 0x1f600 + random() % 50 : random() % 0x900));
      }
    }
    CharacterStream stream;
    std::string shown;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = 1 + random() % 3;
      const std::string piece = stream.push(std::string_view(bytes).substr(at, n));
      CHECK(valid_utf8(piece) == piece);
      shown += piece;
      at += n;
    }
    shown += stream.finish();
    CHECK(shown == valid_utf8(bytes));
  }
}
