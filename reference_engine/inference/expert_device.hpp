/// @file
/// Between a runner and what computes experts: the CPU, or another device.
#pragma once
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/any_link.hpp"
#include "ferry/slot_memory.hpp"
#include "ferry/timeline.hpp"
#include "math/expert.hpp"
#include "math/matrix.hpp"

namespace ferry::engine {

/// What a device is made for.
struct DeviceNeeds {
  const ModelShape& model;
  const Allotment& allotment;
  std::vector<ExpertLayout> layouts;  ///< one for all layers, or where they differ one a layer
  SlotMemory::Source source;          ///< of experts, in the tier below; outlives the device
};

/// What passes on a virtual clock, for devices on one.
class VirtualTime {
 public:
  /// Attention and gate, until the host has read it. Returns what that took.
  virtual Nanoseconds pass_gate(std::uint16_t layer, std::uint32_t rows) = 0;
  /// Attention and gate on a partial hidden state.
  virtual void pass_partial(std::uint16_t layer, std::uint32_t rows) = 0;
  /// A plan's tasks on the host's own thread, in a step of `rows` rows.
  /// Returns what the device would have taken for them.
  virtual Nanoseconds pass_on_host(View<const Task> tasks, std::uint32_t rows) = 0;
  struct Joined {
    Nanoseconds computed = 0, waited = 0;
  };
  /// The device waits for the host. Returns how long the host has computed since it was joined last, and how long that wait
  /// was.
  virtual Joined pass_join() = 0;
  /// When the device will have done what it was given.
  [[nodiscard]] virtual Nanoseconds device_done() const = 0;

 protected:
  ~VirtualTime() = default;
};

/// Computes experts in slots of its own, and is the link that brings them there. All calls from one thread.
///
/// Hidden states are where the model has them. A device with memory of its own computes from and to its own copies:
/// for it, `input` and `out` below are the host's, which it leaves alone.
class ExpertDevice : public AnyLink {
 public:
  /// Blocks until nothing is queued or on its way.
  virtual void drain() = 0;
  [[nodiscard]] virtual double peak_bytes_per_s() const = 0;
  [[nodiscard]] virtual std::vector<Span> link_spans() const = 0;
  /// Of the slots.
  [[nodiscard]] virtual std::uint64_t arena_bytes() const = 0;

  // One layer.

  /// Begins a layer. The plan's views, and what the experts read, `input` [rows, hidden], must hold until `add_up`.
  virtual void begin(const Plan& plan, const Matrix& input) = 0;
  /// Computes tasks of the plan from their slots; tasks of `arriving` only after `wait` for them.
  virtual void compute(View<const Task> tasks) = 0;
  /// A slot's expert has been computed and is not to be used again.
  virtual void poison(std::uint32_t slot) = 0;
  /// Where the host's own thread puts the results of the experts that it computes, [assignments, hidden], in host memory.
  [[nodiscard]] virtual float* host_results() = 0;
  /// The weighted sum of the plan's resident experts, once they are computed: [rows, hidden].
  virtual void partial(Matrix& out) const = 0;
  /// The weighted sum of each row's experts, in the order of their rank: [rows, hidden].
  virtual void add_up(Matrix& out) = 0;
  /// After an exception: what was begun is given up.
  virtual void abandon() noexcept {}

  /// What the last expert took.
  [[nodiscard]] virtual Nanoseconds expert_ns() const = 0;
  /// Whether `wait` returns at once, and the device waits by itself: take_stall_ns then knows for how long. Such a
  /// device's copies move on only when its link is called.
  [[nodiscard]] virtual bool waits_itself() const { return false; }
  /// How long the device itself has waited for copies, as far as it has got, since the last call.
  [[nodiscard]] virtual Nanoseconds take_stall_ns() { return 0; }
  /// Its clock, if that is a virtual one; otherwise null.
  [[nodiscard]] virtual VirtualTime* virtual_time() { return nullptr; }

  std::vector<Span>* log = nullptr;  ///< where spans of its work go, if anywhere
};

}  // namespace ferry::engine
