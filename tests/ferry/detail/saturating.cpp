// Compared with arithmetic in 128 bits.
#include "ferry/detail/saturating.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace ferry;
using namespace ferry::detail;

namespace {

__extension__ typedef __int128 Wide;

Nanoseconds cut(Wide x) {
  return x > Wide{longest} ? longest : static_cast<Nanoseconds>(x);
}

/// Around every power of two, and the ends.
std::vector<Nanoseconds> edges() {
  std::vector<Nanoseconds> all{0, longest, longest - 1, longest / 2, longest / 3, 3'000'000'000};
  for (unsigned bit = 0; bit < 63; ++bit) {
    for (const Nanoseconds more : {-1, 0, 1}) all.push_back((Nanoseconds{1} << bit) + more);
  }
  return all;
}

}  // namespace

TEST_CASE("what fits is exact, what does not is as long as can be") {
  const std::vector<Nanoseconds> all = edges();
  std::uint32_t wrong = 0;
  for (const Nanoseconds a : all) {
    for (const Nanoseconds b : all) {
      wrong += sum(a, b) == cut(Wide{a} + b) ? 0 : 1;
      wrong += product(a, static_cast<std::uint64_t>(b)) == cut(Wide{a} * b) ? 0 : 1;
    }
    for (const std::uint32_t by : {0U, 1U, 37U, 999U, 1000U, 32767U}) {
      for (const std::uint32_t of : {1U, 3U, 500U, 1000U, 32767U}) {
        wrong += scaled(a, by, of) == cut(Wide{a} * by / of) ? 0 : 1;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(product(longest, ~std::uint64_t{0}) == longest);
}

TEST_CASE("times of all experts that a layer may have fit in a sum") {
  CHECK(bounded(5) == 5);
  CHECK(bounded(longest) == bounded(longest - 1));
  CHECK(cut(Wide{bounded(longest)} * no_expert) < longest);
}
