/// @file
/// A thread beside the caller's. Needs a thread library.
#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "ferry/macros.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// One thread that runs one piece of work at a time. `start` and `wait` alternate, and come from one thread.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  /// Also between `start` and `wait`: what was started is still run to its end.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// `work` runs on the thread; what it uses stays as it is until `wait` returns. Nothing is allocated for work that
  /// captures no more than a pointer.
  void start(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work);
      working_ = true;
    }
    changed_.notify_all();
  }

  /// Waits so long at most. Returns whether the work is done; true without any.
  bool done_within(std::chrono::microseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return !working_; });
  }
  /// Returns when the work is done; throws what it threw. Without work: at once. After an exception it can start anew.
  void wait() {
    std::unique_lock lock(mutex_);
    const auto begin = Clock::now();
    changed_.wait(lock, [this] { return !working_; });
    waited_ += Clock::now() - begin;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  /// How long all work that is done has taken. From any thread.
  [[nodiscard]] std::chrono::nanoseconds busy() const {
    const std::lock_guard lock(mutex_);
    return busy_;
  }
  /// How long `wait` has waited in all: the part of `busy` that nothing hid, and the thread's latency. From any thread.
  [[nodiscard]] std::chrono::nanoseconds waited() const {
    const std::lock_guard lock(mutex_);
    return waited_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return working_ || stop_; });
      if (!working_) return;
      const std::function<void()> work = std::move(work_);
      lock.unlock();
      std::exception_ptr error;
      const auto begin = Clock::now();
#if defined(__cpp_exceptions)
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
#else
      work();
#endif
      const auto took = Clock::now() - begin;
      lock.lock();
      error_ = std::move(error);
      busy_ += took;
      working_ = false;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  std::exception_ptr error_;
  bool working_ = false, stop_ = false;
  std::chrono::nanoseconds busy_{0}, waited_{0};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ferry::inline FERRY_ABI::detail
