// Unicode's normal forms, against utf8proc's own function, which is slow where many marks stand on one letter.
#include <doctest/doctest.h>
#include <utf8proc.h>

#include <cstdlib>

#include "support/errors.hpp"
#include "support/random.hpp"
#include "text/bpe_tokenizer.hpp"

namespace {

using namespace ferry::engine;

std::string expected(const std::string& name, const std::string& text) {
  const bool compose = name.back() == 'c', compatible = name.size() == 4;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &made,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                     (compatible ? UTF8PROC_COMPAT : 0)));
  REQUIRE(size >= 0);
  std::string out(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size));
  std::free(made);  // NOLINT: utf8proc's
  return out;
}

std::string encoded(std::uint32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count)};
}

}  // namespace

TEST_CASE("normal forms are Unicode's") {
  ferry::test::Random random(5);
  // Marks of several classes, letters that they combine with, Hangul and its parts, ligatures, and random characters.
  const std::uint32_t some[] = {'a',    'e',    0x301,   0x323,  0x327,  0x345,  0x1e0a, 0xe9,
                                0xac00, 0x1100, 0x1161,  0x11a8, 0xfb01, 0xfdfa, 0x2126, 0x0f71,
                                0x0f72, 0x0f74, 0x1d15e, 0x3099, 0x304b, 0x1100, 0x0344};
  for (const char* name : {"nfc", "nfd", "nfkc", "nfkd"}) {
    CAPTURE(name);
    const Normalizer form = unicode_form(name);
    CHECK(form("") == "");
    CHECK(form("plain") == "plain");
    for (int turn = 0; turn < 3000; ++turn) {
      std::string text;
      for (std::uint32_t i = random.below(12); i > 0; --i) {
        std::uint32_t c = some[random.below(std::size(some))];
        if (random.chance(30)) c = random.chance(50) ? random.below(0xd800) : 0xe000 + random.below(0x102000);
        text += encoded(c);
      }
      const std::string right = expected(name, text);
      CHECK(form(text) == right);
      CHECK(form(right) == right);
    }
  }
  CHECK_THROWS_AS(unicode_form("nfc")("\xff"), InputError);
}

TEST_CASE("hundreds of thousands of marks on a letter are normalized at once") {
  std::string marks = "a", sorted = "\u1ea1";  // the dot below combines with the letter
  for (int i = 0; i < 200'000; ++i) marks += "\u0301\u0323";
  for (int i = 1; i < 200'000; ++i) sorted += "\u0323";
  for (int i = 0; i < 200'000; ++i) sorted += "\u0301";
  CHECK(unicode_form("nfc")(marks) == sorted);
}
