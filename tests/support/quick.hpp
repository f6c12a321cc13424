/// @file
/// Whether tests should do less, as under sanitizers and valgrind, which look for other mistakes than wrong numbers.
#pragma once
#include <cstdlib>

namespace ferry::test {

inline bool quick() {
  return std::getenv("FERRY_TEST_QUICK") != nullptr;
}

}  // namespace ferry::test
