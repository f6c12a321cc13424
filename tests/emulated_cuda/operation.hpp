/// @file
/// Operations of streams, between the files of the emulated CUDA.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda_runtime_api.h"

namespace ferry::test::emulated {

/// What a launch costs.
constexpr std::uint64_t launch_ns = 5000;

class Operation {
 public:
  explicit Operation(std::uint64_t cost) : cost_ns(cost) {}
  virtual ~Operation() = default;

  /// Whether a step can be made.
  [[nodiscard]] virtual bool ready() const { return true; }
  /// One step, or all of it. True: that was the last.
  virtual bool step(bool whole) = 0;
  /// After the last step; the stream's time may still be moved.
  virtual void end(std::uint64_t& /*stream_ns*/) {}
  [[nodiscard]] virtual std::string text() const = 0;

  const std::uint64_t cost_ns;
  std::uint64_t submitted_ns = 0;
};

/// splitmix64: the same numbers everywhere.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }

 private:
  std::uint64_t state_;
};

/// Counts the call, fails it if that was asked for, and queues the operation.
cudaError_t submit(const char* call, cudaStream_t stream, std::unique_ptr<Operation> operation);
/// The same for a launch, whose configuration is checked.
cudaError_t submit_launch(const cudaLaunchConfig_t& config, const void* kernel, std::unique_ptr<Operation> operation);
/// A call that touches the device but queues nothing.
cudaError_t touch(const char* call);

/// Whether all these bytes belong to one allocation of device memory or to pinned memory.
bool device_reaches(const void* p, std::uint64_t bytes);

/// Tells `reset` which cuBLAS handles live.
void note_blas_handle(const void* handle, bool lives);

/// Whether a random thread of a block goes on after a barrier, and a seed for that; asked before a block runs.
bool random_fibers();
std::uint64_t random_number();

/// Prints the sentence and aborts: the program that runs is wrong, and no error code would tell.
[[noreturn]] void die(const std::string& sentence);

}  // namespace ferry::test::emulated
