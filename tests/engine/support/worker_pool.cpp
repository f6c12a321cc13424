// Threads that share parts: each part once, from several callers at a time.
#include "support/worker_pool.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/threads.hpp"

using ferry::engine::WorkerPool;

TEST_SUITE_BEGIN("threads");

TEST_CASE("every part is done once, whatever the numbers of parts and threads") {
  for (const std::uint32_t threads : {1U, 2U, 5U}) {
    WorkerPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const std::uint32_t parts : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<std::atomic<int>> done(parts);
      pool.run(parts, [&](std::uint32_t part) { ++done[part]; });
      for (const auto& d : done) CHECK(d == 1);
    }
  }
  CHECK(WorkerPool(0).threads() == ferry::engine::all_threads());
}

TEST_CASE("what parts wrote is there when they are done, and what was written before them is seen by them") {
  WorkerPool pool(3);
  std::vector<int> in(64), out(64);
  for (int round = 0; round < 2000; ++round) {
    std::iota(in.begin(), in.end(), round);
    pool.run(64, [&](std::uint32_t part) { out[part] = in[part] + 1; });
    REQUIRE(std::accumulate(out.begin(), out.end(), 0) == 64 * (round + 1) + 63 * 32);
  }
}

TEST_CASE("what a part throws comes out of run once nobody is at a part, whichever thread threw it") {
  WorkerPool pool(3);
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> inside = 0;
    const auto all = [&] {
      std::vector<int> parts(64);  // destroyed before the next round
      pool.run(64, [&](std::uint32_t part) {
        ++inside;
        parts[part] = 1;
        --inside;
        if (part >= static_cast<std::uint32_t>(round) % 64) throw std::runtime_error("part");
      });
    };
    CHECK_THROWS_WITH_AS(all(), "part", std::runtime_error);
    REQUIRE(inside == 0);
    std::atomic<int> done = 0;
    pool.run(8, [&](std::uint32_t) { ++done; });
    REQUIRE(done == 8);
  }
}

TEST_CASE("several callers at a time each get their own parts") {
  WorkerPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      std::vector<int> mine(50);
      for (int round = 0; round < 500; ++round) {
        pool.run(50, [&](std::uint32_t part) { mine[part] += caller + 1; });
      }
      for (const int m : mine) wrong += m == 500 * (caller + 1) ? 0 : 1;
    });
  }
  for (std::thread& c : callers) c.join();
  CHECK(wrong == 0);
}

TEST_CASE("a pool takes other numbers of threads, also none") {
  WorkerPool pool(4);
  for (const std::uint32_t threads : {2U, 1U, 3U}) {
    pool.set_threads(threads);
    CHECK(pool.threads() == threads);
    std::atomic<std::uint32_t> sum = 0;
    pool.run(10, [&](std::uint32_t part) { sum += part; });
    CHECK(sum == 45);
  }
}

TEST_CASE("pinned threads stay on one processor each, and the caller goes where it went") {
  const auto allowed = [] {
    cpu_set_t set;
    REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
    return set;
  };
  const cpu_set_t before = allowed();
  WorkerPool pool;
  pool.set_threads(3, true);
  std::mutex mutex;
  std::map<std::thread::id, cpu_set_t> seen;
  std::atomic<int> at_once = 0;
  pool.run(3, [&](std::uint32_t) {
    ++at_once;
    while (at_once < 3) std::this_thread::yield();  // waits until each thread has a part
    cpu_set_t set;
    sched_getaffinity(0, sizeof(set), &set);
    const std::lock_guard lock(mutex);
    seen[std::this_thread::get_id()] = set;
  });
  REQUIRE(seen.size() == 3);
  for (const auto& [thread, set] : seen) {
    if (thread == std::this_thread::get_id()) continue;
    CHECK(CPU_COUNT(&set) == 1);
    cpu_set_t among;
    CPU_AND(&among, &set, &before);
    CHECK(CPU_EQUAL(&among, &set));
  }
  const cpu_set_t after = allowed();
  CHECK(CPU_EQUAL(&before, &after));
}

TEST_CASE("callers take the places of the pool's threads, and give them back") {
  WorkerPool pool(2);
  const auto pools_share = [&](std::uint32_t parts) {  // how many of a caller's parts another thread had
    const auto caller = std::this_thread::get_id();
    std::atomic<std::uint32_t> others = 0;
    pool.run(parts, [&](std::uint32_t) {
      if (std::this_thread::get_id() != caller) ++others;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    return others.load();
  };
  CHECK(pools_share(200) > 0);
  pool.enter();  // together with the caller below there are two
  CHECK(pools_share(20) == 0);
  pool.leave();
  CHECK(pools_share(200) > 0);

  // If its place is taken, a thread of the pool ends its present part, and begins no other until there is a place again.
  std::atomic<bool> taken = false;
  std::atomic<std::uint32_t> others = 0, after = 0;
  std::thread guest;
  const auto caller = std::this_thread::get_id();
  pool.run(200, [&](std::uint32_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::this_thread::get_id() == caller) return;
    if (taken) ++after;
    if (++others != 5) return;
    pool.enter();
    taken = true;
    guest = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      CHECK(after == 0);
      taken = false;
      pool.leave();
    });
  });
  REQUIRE(guest.joinable());  // the other thread had five of 200 parts
  guest.join();
  CHECK(others > 5);
}

TEST_CASE("a caller does not wait for threads that are busy with another's parts") {
  WorkerPool pool(2);
  std::atomic<bool> begun = false, leave = false;
  std::thread other([&] {
    pool.run(2, [&](std::uint32_t) {
      begun = true;
      while (!leave) std::this_thread::yield();
    });
  });
  while (!begun) std::this_thread::yield();
  int done = 0;
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> parts = 0;
    pool.run(3, [&](std::uint32_t) { ++parts; });
    done += parts;
  }
  CHECK(done == 300);
  leave = true;
  other.join();
}

TEST_SUITE_END();
