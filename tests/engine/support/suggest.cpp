#include "support/suggest.hpp"

#include <doctest/doctest.h>

using namespace ferry::engine;

TEST_CASE("what is near is suggested, what nothing is near is only unknown") {
  const std::vector<std::string> known{"lru", "hobbit", "rtx3090-pcie3", "maker/small"};
  CHECK(nearest_name("stack", "lur", known) == "unknown stack \"lur\": did you mean \"lru\"?");
  CHECK(nearest_name("stack", "hobit", known) == "unknown stack \"hobit\": did you mean \"hobbit\"?");
  // Half of the letters suffice, or a part of the name.
  CHECK(nearest_name("machine", "rtx3090", known).ends_with("did you mean \"rtx3090-pcie3\"?"));
  CHECK(nearest_name("model", "small", known).ends_with("did you mean \"maker/small\"?"));
  for (const char* far : {"", "zzz", "quicksort"}) {
    CHECK(nearest_name("stack", far, known) == "unknown stack \"" + std::string(far) + "\"");
  }
  CHECK(nearest_name("stack", "x", {}) == "unknown stack \"x\"");
  CHECK(unknown_name("stack", "zzz", {"lru", "fate"}) == "unknown stack \"zzz\" (lru, fate)");
  CHECK(unknown_name("stack", "fats", {"lru", "fate"}) == "unknown stack \"fats\": did you mean \"fate\"? (lru, fate)");
}
