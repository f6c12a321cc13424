// Work on several threads.
#include "support/threads.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

using ferry::engine::on_threads;

TEST_CASE("every piece of work is done once, on any number of threads" * doctest::test_suite("threads")) {
  for (const std::uint32_t threads : {0U, 1U, 4U, 200U}) {
    std::vector<std::atomic<int>> done(100);
    on_threads(threads, done.size(), [&](std::size_t i) { ++done[i]; });
    for (const auto& d : done) CHECK(d == 1);
  }
  on_threads(4, 0, [](std::size_t) { FAIL("nothing to do"); });
}

TEST_CASE("a failure of one piece of work ends the others, and is passed on") {
  for (const std::uint32_t threads : {1U, 4U}) {
    std::atomic<int> done = 0;
    auto work = [&](std::size_t i) {
      if (i == 7) throw std::runtime_error("seven");
      ++done;
    };
    CHECK_THROWS_WITH_AS(on_threads(threads, 100'000'000, work), "seven", std::runtime_error);
    CHECK(done < 100'000'000 - 1);
  }
}
