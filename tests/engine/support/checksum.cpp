// Text that holds its own checksum.
#include "support/checksum.hpp"

#include <doctest/doctest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>
#include <string>

using namespace ferry;
using namespace ferry::engine;

TEST_CASE("a seal is XXH3 of the text with zeros in its place, and of what follows") {
  const std::string before = R"({"a":1,"b":{"xxh3":")", after = R"("},"c":"x"})", rest = "more";
  std::string text = before + unsealed + after;
  seal(text, {rest});
  const std::string all = before + "0000000000000000" + after + rest;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(all.data(), all.size())));
  CHECK(text == before + digits + after);
  CHECK(seal_of(text, {rest}) == Seal::right);
  CHECK(seal_of(text, {"mor", "e"}) == Seal::right);
  CHECK(seal_of(text, {"more."}) == Seal::wrong);
}

TEST_CASE("a flipped bit anywhere breaks a seal, and so does a cut") {
  std::string text = R"({"name":"it says \"xxh3\":\"0123456789abcdef\"","xxh3":"0000000000000000"})";
  seal(text);
  REQUIRE(seal_of(text) == Seal::right);
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    CAPTURE(bit);
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    CHECK(seal_of(damaged) != Seal::right);
  }
  for (std::size_t size = 0; size < text.size(); ++size) CHECK(seal_of(text.substr(0, size)) != Seal::right);
  CHECK(seal_of(R"({"name":"no \"xxh3\":\"0123456789abcdef\" of its own"})") == Seal::none);
}
