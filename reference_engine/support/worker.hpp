/// @file
/// The host device's own thread: computes experts beside the device.
#pragma once
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "ferry/model.hpp"

namespace ferry::engine {

/// One thread that runs one piece of work at a time. `start` and `wait` alternate.
class HostWorker {
 public:
  HostWorker() : thread_([this] { serve(); }) {}
  ~HostWorker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  HostWorker(const HostWorker&) = delete;
  HostWorker& operator=(const HostWorker&) = delete;

  /// `work` runs on the thread; what it uses stays as it is until `wait` returns.
  void start(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_ = std::move(work);
      busy_ = true;
    }
    changed_.notify_all();
  }

  /// Waits so long at most. Returns whether the work is done; true without any.
  bool done_within(std::chrono::microseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return !busy_; });
  }
  /// Returns when the work is done; throws what it threw. Without work: at once. After an exception it can start anew.
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return busy_ || stop_; });
      if (!busy_) return;
      const std::function<void()> work = std::move(work_);
      lock.unlock();
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  std::exception_ptr error_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ferry::engine
