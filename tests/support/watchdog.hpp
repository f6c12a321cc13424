/// @file
/// Ends a test that hangs, instead of whoever waits for it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace ferry::test {

/// Calls `bite` unless it is destroyed in time. By default that ends the program, and doctest names the case.
class Watchdog {
 public:
  /// Hundreds of times longer than a link's tests take, since sanitizers, valgrind and other work slow them down.
  static constexpr std::chrono::milliseconds patience{60'000};

  explicit Watchdog(std::chrono::milliseconds limit = patience, std::function<void()> bite = end_program)
      : thread_([this, limit, bite = std::move(bite)] {
          std::unique_lock lock(mutex_);
          if (!gone_.wait_for(lock, limit, [this] { return called_off_; })) bite();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      called_off_ = true;
    }
    gone_.notify_one();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  static void end_program() {
    std::fputs("a test hangs: its watchdog ends it\n", stderr);
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable gone_;
  bool called_off_ = false;
  std::thread thread_;
};

}  // namespace ferry::test
