#include "ferry/gate/gate_worker.hpp"

#include <doctest/doctest.h>

#include "support/gates.hpp"
#include "support/random.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("the worker gives what the bank gives, also while the caller uses the bank and overwrites its rows") {
  test::Random random(4);
  GateBank bank = random_bank(random, 6, 8, 24);
  GateWorker worker(bank);
  for (int i = 0; i < 200; ++i) {
    const std::uint32_t rows = random.between(1, 5);
    const std::uint32_t count = random.between(1, 3);
    const auto first = static_cast<std::uint16_t>(random.below(4));
    Matrix x = random_matrix(random, rows, 24);
    GateBank::Result expected;
    bank.scores(first, count, x, expected);
    worker.start(first, count, x);
    x.setZero();
    bank.scores(5, random_matrix(random, 2, 24));
    const View<const Scores> got = worker.join();
    REQUIRE(got.size == count);
    for (std::uint32_t p = 0; p < count; ++p) {
      const Scores& want = expected.scores[p];
      CHECK(got[p].layer == first + p);
      REQUIRE(got[p].select.size == want.select.size);
      bool same = true;
      for (std::uint32_t c = 0; c < want.select.size; ++c) same = same && got[p].select[c] == want.select[c];
      CHECK(same);
    }
  }
}

TEST_CASE("the worker's time is measured, and none of it waited for if the caller was busy longer") {
  test::Random random(4);
  GateBank bank = random_bank(random, 4, 16, 512);
  GateWorker worker(bank);
  CHECK(worker.busy_ns() == 0);
  CHECK(worker.waited_ns() == 0);
  const Matrix x = random_matrix(random, 64, 512);
  worker.start(0, 4, x);
  while (worker.busy_ns() == 0) std::this_thread::yield();  // other work, until the product is made
  const Nanoseconds busy = worker.busy_ns();
  worker.join();
  CHECK(worker.busy_ns() == busy);
  CHECK(worker.waited_ns() < 1'000'000'000);
  worker.start(0, 4, x);
  worker.join();
  CHECK(worker.busy_ns() > busy);
  CHECK(worker.waited_ns() > 0);
}

TEST_CASE("what the worker throws, join throws, and the worker goes on") {
  test::Random random(4);
  GateBank bank = random_bank(random, 3, 4, 8);
  GateWorker worker(bank);
  const Matrix x = random_matrix(random, 1, 8);
  for (int i = 0; i < 3; ++i) {
    worker.start(2, 2, x);
    CHECK_THROWS_WITH_AS(worker.join(),
                         "GateBank: scores of 2 layers from layer 2 on were asked for, there are 3 layers",
                         std::out_of_range);
    worker.start(1, 2, x);
    CHECK(worker.join().size == 2);
  }
}

TEST_CASE("the worker can end at any moment") {
  test::Random random(4);
  GateBank bank = random_bank(random, 4, 32, 256);
  const Matrix x = random_matrix(random, 16, 256);
  { const GateWorker never_started(bank); }
  for (int i = 0; i < 30; ++i) {
    GateWorker worker(bank);
    if (i % 3 == 0) {
      worker.start(0, 4, x);
      worker.join();
    }
    worker.start(0, 4, x);  // ends before, while, or after it is made
    for (int spin = 0; spin < i * 200; ++spin) std::this_thread::yield();
  }
  {
    GateWorker failing(bank);
    failing.start(9, 1, x);
  }
}
