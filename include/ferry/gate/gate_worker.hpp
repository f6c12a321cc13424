/// @file
/// Predicted gate scores beside the device's computation. Needs Eigen and a thread library.
#pragma once
#include <cassert>

#include "ferry/detail/worker.hpp"
#include "ferry/gate/gate_bank.hpp"

namespace ferry::inline FERRY_ABI {

/// A thread that makes what GateBank::scores makes, while the caller goes on.
///
/// Source: Fate, section 4.3: the gate input is cloned to the CPU, and the next gate runs there in parallel with the
/// device.
///
/// `start` copies the rows and returns at once; `join` waits for the result. They alternate, and the caller joins at a
/// fixed point of each layer, so that what is predicted does not depend on who was faster. The bank may be read between
/// them, but not changed; it must outlive the worker. `join` throws what the worker throws. The worker may be destroyed
/// between `start` and `join`; it then waits for the product.
/// Threads: `start` and `join` from one thread. Needs the platform's thread library (CMake: Threads::Threads).
class GateWorker {
 public:
  /// Starts the thread. The bank outlives it.
  explicit GateWorker(const GateBank& bank) : bank_(bank) {}

  /// Scores for `count` layers from `first_layer` on, from `input` [rows, d].
  void start(std::uint16_t first_layer, std::uint32_t count, const Eigen::Ref<const GateBank::Matrix>& input) {
    assert(!started_);  // the last one was not joined
    input_ = input;
    first_layer_ = first_layer;
    count_ = count;
    started_ = true;
    worker_.start([this] { scores_ = bank_.scores(first_layer_, count_, input_, result_); });
  }

  /// What GateBank::scores gives. Valid until the next `start`.
  View<const Scores> join() {
    assert(started_);  // nothing to wait for
    started_ = false;
    worker_.wait();
    return scores_;
  }

  /// How long the worker has computed, up to the last `join`.
  [[nodiscard]] Nanoseconds busy_ns() const { return worker_.busy().count(); }
  /// How long `join` has waited for it: the part of `busy_ns` that nothing hid, and the thread's latency.
  [[nodiscard]] Nanoseconds waited_ns() const { return worker_.waited().count(); }

 private:
  const GateBank& bank_;
  bool started_ = false;  ///< the caller's own

  // The worker's from `start` to `join`, otherwise the caller's.
  GateBank::Matrix input_;
  std::uint16_t first_layer_ = 0;
  std::uint32_t count_ = 0;
  GateBank::Result result_;
  View<const Scores> scores_;

  detail::Worker worker_;  // last: its work uses all of the above
};

}  // namespace ferry::inline FERRY_ABI
