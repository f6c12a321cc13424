#include "text/regex.hpp"

#include <doctest/doctest.h>

#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"
#include "text/regex_dialect.hpp"

using namespace ferry::engine;

namespace {

/// The text with its matches in brackets.
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
  CHECK(Regex("x*", "f").split("axé").size() == 3);  // empty matches split, too
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

TEST_CASE("characters of Unicode 15 and 16 are of their category") {
  // A pink heart and a shaking face (15), a face with bags under its eyes (16), a Chinese character of extension H.
  const std::string heart = "\U0001fa77", shaking = "\U0001fae8", tired = "\U0001fae9", chinese = "\U00031350";
  CHECK(marked(R"(\p{S}+)", "a" + heart + shaking + tired + "b") == "a[" + heart + shaking + tired + "]b");
  CHECK(marked(R"([\p{L}]+)", heart + chinese + "a") == heart + "[" + chinese + "a]");
  CHECK(marked(R"(\p{Han})", chinese + "a") == "[" + chinese + "]a");
  // A Kannada sign (Mc), a Lao one (Mn), a Garay digit, capital and small letter (16).
  CHECK(marked(R"(\p{Mc})", "\u0cf3\u0ece") == "[\u0cf3]\u0ece");
  CHECK(marked(R"(\p{Mn})", "\u0cf3\u0ece") == "\u0cf3[\u0ece]");
  CHECK(marked(R"(\p{N}|\p{Lu})", "\U00010d41\U00010d50\U00010d70") == "[\U00010d41][\U00010d50]\U00010d70");
  CHECK(marked(R"(\p{Cn})", heart + "\U000e0fff") == heart + "[\U000e0fff]");
  // A character that the expression names is matched as itself.
  CHECK(marked(heart, shaking + heart) == shaking + "[" + heart + "]");
}

TEST_CASE("brackets in a class are characters, and what others read otherwise is refused") {
  CHECK(marked(R"([\[\]]+)", "a[]b") == "a[[]]b");
  CHECK(marked(R"([]x]+)", "a]x") == "a[]x]");
  CHECK(marked(R"([^]x]+)", "a]x") == "[a]]x");
  CHECK_THROWS_WITH_AS(Regex("[a[b]+", "f"), doctest::Contains("a class without its ]"), InputError);
  CHECK_THROWS_WITH_AS(Regex(R"(\h)", "f"), doctest::Contains("\\h"), InputError);
  CHECK_THROWS_WITH_AS(Regex("(", "f: x"), doctest::Contains("f: x: the expression \"(\" cannot be read"), InputError);
  CHECK_THROWS_AS(Regex(std::string(70000, 'a'), "f"), InputError);
}

TEST_CASE("what Oniguruma reads otherwise than PCRE2 is read as Oniguruma does") {
  // Nested classes and intersections.
  CHECK(marked("[a[bc]d]+", "xbdx") == "x[bd]x");
  CHECK(marked(R"( ?[^(\s|[.,!?])]+)", "a b.c,(d") == "[a][ b].[c],([d]");
  CHECK(marked(R"([\p{L}\p{M}&&[^\p{Han}]]+)", "ab\u4e2dc") == "[ab]\u4e2d[c]");
  CHECK(marked("[a-z&&[aeiou]]+", "hello") == "h[e]ll[o]");
  CHECK(marked("[a-z&&aeiou]", "hi") == "h[i]");
  CHECK(marked("[^[^a]]+", "baa") == "b[aa]");
  for (const char* no : {"[^a&&b]", "[a[^b]]", "[[a&&b]c]"}) {
    CHECK_THROWS_WITH_AS(Regex(no, "f"), doctest::Contains("which is not supported"), InputError);
  }
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += '[';
  CHECK_THROWS_WITH_AS(Regex(deep, "f"), doctest::Contains("classes within classes"), InputError);
  // Repetitions that are repeated, and not possessive.
  CHECK(for_pcre2(R"(\p{N}{1,3}+)", "f", Dialect::oniguruma) == R"((?:\p{N}{1,3})+)");
  CHECK(marked(R"(\p{N}{1,3}+)", "1234567x") == "[1234567]x");
  CHECK(marked(R"((?:ab){2}+)", "ababab") == "[abab]ab");
  CHECK(marked("x[ab]{2}+", "xababa") == "[xabab]a");
  CHECK(marked("é{2}+", "ééé") == "[éé]é");
  CHECK(marked("a{2}?b", "aab b") == "[aab] [b]");
  CHECK(marked("a{,2}b", "aaab") == "a[aab]");
  CHECK(marked("a{2}", "aaa") == "[aa]a");
  CHECK(marked("a{x", "a{x") == "[a{x]");
  // Letters, marks and scripts.
  CHECK(marked(R"(\w+)", "\u0915\u093f\u00b2 \u24d0b") == "[\u0915\u093f\u00b2] [\u24d0b]");
  CHECK(marked(R"(\d(?=\b))", "1\ufe0f\u20e3 2 3\u0300 4\u00b2") == "1\ufe0f\u20e3 [2] 3\u0300 4\u00b2");
  CHECK(marked(R"(\d\B)", "1\ufe0f\u20e3 2 3\u0300") == "[1]\ufe0f\u20e3 2 [3]\u0300");
  CHECK(marked(R"([\w]+)", "1\u00b2") == "[1]\u00b2");
  CHECK(marked(R"(\W)", "a-") == "a[-]");
  CHECK(marked(R"(\p{Han})", "\u3220\u4e2d") == "\u3220[\u4e2d]");
  CHECK(marked(R"([^\p{^Han}])", "\u3220\u4e2d") == "\u3220[\u4e2d]");
  CHECK(marked(R"((?m)a.b)", "a\nb") == "[a\nb]");
  CHECK(marked(R"((?i:AB)(?=c)\x{64}?)", "abc") == "[ab]c");
}

TEST_CASE("an expression that backtracks for ever ends, and says so") {
  CHECK_THROWS_WITH_AS(static_cast<void>(Regex("(a+)+[xy]", "f").split(std::string(40, 'a') + "b")),
                       doctest::Contains("f: splitting a text of 41 bytes failed"), InputError);
  const std::string blanks(1U << 20U, ' ');
  CHECK(Regex(R"(\s+(?!\S)|\s+)", "f").split(blanks).size() == 1);
  CHECK(Regex(R"(\p{L}+)", "f").split(std::string(1U << 20U, 'a')).size() == 1);
}
