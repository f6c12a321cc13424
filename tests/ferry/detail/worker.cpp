#include "ferry/detail/worker.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

using namespace ferry;

TEST_CASE("a worker without work: nothing to wait for, no time spent, and it can end at once") {
  { const detail::Worker never_started; }
  detail::Worker worker;
  CHECK(worker.done_within(std::chrono::microseconds(0)));
  worker.wait();
  worker.wait();
  CHECK(worker.busy().count() == 0);
}

TEST_CASE("a worker runs work on a thread of its own, and says when it is done") {
  std::thread::id there;
  std::promise<void> go;
  detail::Worker worker;
  worker.start([&] {
    go.get_future().wait();
    there = std::this_thread::get_id();
  });
  CHECK(!worker.done_within(std::chrono::microseconds(100)));
  CHECK(worker.busy().count() == 0);
  go.set_value();
  CHECK(worker.done_within(std::chrono::seconds(60)));
  worker.wait();
  CHECK(there != std::this_thread::get_id());
  CHECK(worker.busy().count() > 0);
  CHECK(worker.waited().count() >= 0);
  const auto busy = worker.busy();
  int done = 0;
  for (int i = 0; i < 1000; ++i) {
    worker.start([&] { ++done; });
    worker.wait();
  }
  CHECK(done == 1000);
  CHECK(worker.busy() >= busy);
}

TEST_CASE("exceptions come out of a worker's wait, once, and work can follow") {
  int done = 0;
  detail::Worker worker;
  for (int i = 1; i <= 3; ++i) {
    worker.start([] { throw std::runtime_error("burnt"); });
    CHECK(worker.done_within(std::chrono::seconds(60)));  // failed is done, too
    CHECK_THROWS_WITH_AS(worker.wait(), "burnt", std::runtime_error);
    worker.wait();
    worker.start([&] { ++done; });
    worker.wait();
    CHECK(done == i);
  }
}

TEST_CASE("a worker that ends while busy finishes what was started, also if that fails") {
  for (int i = 0; i < 30; ++i) {
    std::atomic<int> done = 0;
    {
      detail::Worker worker;
      worker.start([&] {
        for (int spin = 0; spin < 200; ++spin) std::this_thread::yield();
        ++done;
      });
      for (int spin = 0; spin < i * 20; ++spin) std::this_thread::yield();  // it ends before, while or after
    }
    CHECK(done == 1);
  }
  detail::Worker failing;
  failing.start([] { throw std::runtime_error("burnt"); });
}
