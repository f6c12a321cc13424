/// @file
/// Predicted gate scores beside the device's computation. Needs Eigen and a thread library.
#pragma once
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "ferry/gate/gate_bank.hpp"

namespace ferry::inline FERRY_ABI {

/// A thread that makes what GateBank::scores makes, while the caller goes on.
///
/// Source: Fate, section 4.3: the gate input is cloned to the CPU, and the next gate runs there in parallel with the
/// device.
///
/// `start` copies the rows and returns at once; `join` waits for the result. They alternate, and the caller joins at a
/// fixed point of each layer, so that what is predicted does not depend on who was faster. The bank may be read between
/// them, but not `set`; it must outlive the worker. What the worker throws, `join` throws.
/// Threads: `start` and `join` from one thread. Needs the platform's thread library (CMake: Threads::Threads).
class GateWorker {
 public:
  explicit GateWorker(const GateBank& bank) : bank_(bank) {
    thread_ = std::thread([this] { work(); });
  }
  /// Also between `start` and `join`; waits for a product that has begun.
  ~GateWorker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  GateWorker(const GateWorker&) = delete;
  GateWorker& operator=(const GateWorker&) = delete;

  /// Scores for `count` layers from `first_layer` on, from `input` [rows, d].
  void start(std::uint16_t first_layer, std::uint32_t count, const Eigen::Ref<const GateBank::Matrix>& input) {
    assert(!started_);  // the last one was not joined
    input_ = input;
    first_layer_ = first_layer;
    count_ = count;
    started_ = true;
    {
      const std::lock_guard lock(mutex_);
      state_ = State::asked;
    }
    changed_.notify_all();
  }

  /// What GateBank::scores gives. Valid until the next `start`.
  View<const Scores> join() {
    assert(started_);  // nothing to wait for
    started_ = false;
    std::unique_lock lock(mutex_);
    const auto begin = Clock::now();
    changed_.wait(lock, [&] { return state_ == State::done; });
    waited_ns_ += since(begin);
    state_ = State::idle;
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
    return scores_;
  }

  /// How long the worker has computed, up to the last `join`.
  [[nodiscard]] Nanoseconds busy_ns() const {
    const std::lock_guard lock(mutex_);
    return busy_ns_;
  }
  /// How long `join` has waited for it: the part of `busy_ns` that nothing hid, and the thread's latency.
  [[nodiscard]] Nanoseconds waited_ns() const {
    const std::lock_guard lock(mutex_);
    return waited_ns_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t { idle, asked, done };

  static Nanoseconds since(Clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || state_ == State::asked; });
      if (stop_) return;
      lock.unlock();  // the caller leaves what follows alone until the state is `done`
      const auto begin = Clock::now();
      try {
        scores_ = bank_.scores(first_layer_, count_, input_, result_);
      } catch (...) {
        failed_ = std::current_exception();
      }
      lock.lock();
      busy_ns_ += since(begin);
      state_ = State::done;
      changed_.notify_all();
    }
  }

  const GateBank& bank_;
  bool started_ = false;  ///< the caller's own

  // The caller's while idle or done, the worker's while asked.
  GateBank::Matrix input_;
  std::uint16_t first_layer_ = 0;
  std::uint32_t count_ = 0;
  GateBank::Result result_;
  View<const Scores> scores_;
  std::exception_ptr failed_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  bool stop_ = false;
  Nanoseconds busy_ns_ = 0, waited_ns_ = 0;
  std::thread thread_;
};

}  // namespace ferry::inline FERRY_ABI
