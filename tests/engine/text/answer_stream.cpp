#include "text/answer_stream.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace ferry::engine;

TEST_CASE("an answer ends ahead of its stop string, and nothing of it is ever shown") {
  AnswerStream answer({"\nUser:", "END"});
  CHECK(answer.push("Hello\n") == "Hello");
  CHECK(answer.push("Us") == "");
  CHECK(answer.push("ed.\nUse") == "\nUsed.");
  CHECK_FALSE(answer.stopped());
  CHECK(answer.push("r: hi") == "");
  CHECK(answer.stopped());
  CHECK(answer.push("more") == "");
  CHECK(answer.finish() == "");
}

TEST_CASE("what began a stop string and did not become one is shown in the end") {
  AnswerStream answer({"aab"});
  CHECK(answer.push("xaa") == "x");
  CHECK(answer.push("a") == "a");
  CHECK(answer.finish() == "aa");
}

TEST_CASE("pieces of any size show what the whole text shows up to its first stop string") {
  std::mt19937 random(3);
  const std::vector<std::string> stops{"abc", "bb", "\xc3\xa9"};
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (std::uint_fast32_t n = random() % 12; n > 0; --n)
      text += random() % 9 == 0 ? "\xc3\xa9" : std::string(1, "abcd"[random() % 4]);
    std::size_t end = text.size();
    for (const std::string& s : stops) end = std::min(end, text.find(s));
    AnswerStream answer(stops);
    std::string shown;
    for (std::size_t at = 0; at < text.size() && !answer.stopped();) {
      const std::size_t n = 1 + random() % 3;
      shown += answer.push(std::string_view(text).substr(at, n));
      CHECK(text.substr(0, end).starts_with(shown));
      at += n;
    }
    shown += answer.finish();
    CHECK(shown == text.substr(0, end));
    CHECK(answer.stopped() == (end < text.size()));
  }
}
