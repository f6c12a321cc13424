#include "text/regex.hpp"

#include <doctest/doctest.h>

#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"

using namespace ferry::engine;

namespace {

/// Matches in brackets.
std::string marked(const std::string& pattern, const std::string& text) {
  std::string out;
  for (const Stretch& s : Regex(pattern, "p").split(text)) {
    const std::string part = text.substr(s.begin, s.end - s.begin);
    out += s.matched ? "[" + part + "]" : part;
  }
  return out;
}

}  // namespace

TEST_CASE("a text is split into matches and what lies between them") {
  CHECK(marked("a+", "baaac") == "b[aaa]c");
  CHECK(marked("a", "aab") == "[a][a]b");
  CHECK(marked(R"(\p{N}{1,3})", "1234567") == "[123][456][7]");
  CHECK(marked("x*", "aé") == "aé");  // of nothing: no matches
  CHECK(marked("b", "") == "");
  CHECK(marked(literally("a.b(*)"), "a.b(*) axb") == "[a.b(*)] axb");
  CHECK(marked(R"(\s+(?!\S)|\s+)", "a   b") == "a[  ][ ]b");
}

TEST_CASE("white space is Unicode's, in classes and outside, and a Mongolian separator is none") {
  CHECK(marked(R"(\s)", "\xc2\x85") == "[\xc2\x85]");
  CHECK(marked(R"(\s)", "\xe1\xa0\x8e") == "\xe1\xa0\x8e");
  CHECK(marked(R"([^\s\p{L}]+)", "a\xe1\xa0\x8e!\xe2\x80\xa8") == "a[\xe1\xa0\x8e!]\xe2\x80\xa8");
  CHECK(marked(R"(\S+)", "a\xc2\xa0 b") == "[a]\xc2\xa0 [b]");
  CHECK(marked(R"([\s\S])", "a") == "[a]");
}

TEST_CASE("brackets in a class are characters, and what others read otherwise is refused") {
  CHECK(marked(R"([\[\]]+)", "a[]b") == "a[[]]b");
  CHECK(marked(R"([a[b]+)", "[ab]") == "[[ab]]");
  CHECK(marked(R"([]x]+)", "a]x") == "a[]x]");
  CHECK(marked(R"([^]x]+)", "a]x") == "[a]]x");
  CHECK_THROWS_WITH_AS(Regex("[a&&b]", "f"), doctest::Contains("&& in a class"), InputError);
  CHECK_THROWS_WITH_AS(Regex(R"(\h)", "f"), doctest::Contains("\\h"), InputError);
  CHECK_THROWS_WITH_AS(Regex("(", "f: x"), doctest::Contains("f: x: the expression \"(\" cannot be read"), InputError);
  CHECK_THROWS_AS(Regex(std::string(70000, 'a'), "f"), InputError);
}

TEST_CASE("an expression that backtracks for ever ends, and says so") {
  CHECK_THROWS_WITH_AS(static_cast<void>(Regex("(a+)+[xy]", "f").split(std::string(40, 'a') + "b")),
                       doctest::Contains("f: splitting a text of 41 bytes failed"), InputError);
  const std::string blanks(1U << 20U, ' ');
  CHECK(Regex(R"(\s+(?!\S)|\s+)", "f").split(blanks).size() == 1);
  CHECK(Regex(R"(\p{L}+)", "f").split(std::string(1U << 20U, 'a')).size() == 1);
}
