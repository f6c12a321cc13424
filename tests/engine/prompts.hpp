/// @file
/// Prompts written for these tests: a sum told in words, a program, a play.
#pragma once
#include <string>
#include <vector>

namespace ferry::test {

inline const std::vector<std::string>& prompts() {
  static const std::vector<std::string> all = {
      "Question: Nora packs 6 crates with 15 lamps each and 4 crates with 9 lamps each. How many lamps does "
      "she pack?\n"
      "Answer: ",
      "class Harbour:\n    \"\"\"Keeps count of the boats.\"\"\"\n\n    def __init__(self, berths):\n        "
      "self.berths = ",
      "FIRST SAILOR:\nThe tide is out, my lord, and so is hope;\n\nCAPTAIN:\n"};
  return all;
}

}  // namespace ferry::test
