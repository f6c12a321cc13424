/// @file
/// Controls of the emulated CUDA, and what tests can ask it.
///
/// With this folder ahead of CUDA's headers (-I tests/emulated_cuda), the host code and the .cu files (-x c++) that
/// nvcc compiles for a GPU compile as C++ and run on the host: memory of the device is heap memory of its own, streams
/// are queues that advance only inside calls of the API, threads of a block are fibers. Link every .cpp file of this
/// folder but test.cpp, with -lboost_context -pthread.
///
/// Emulated time: a call takes 200 ns, a copy 1000 ns and 1 ns a byte, a launch 5000 ns, a host function 2000 ns. An
/// operation begins once it has been submitted, and once all operations before it in its stream, and all that they wait for,
/// have ended. A host that waits is as late as what it waited for.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>

namespace ferry::test::emulated {

struct Options {
  std::uint64_t seed = 1;  ///< the same seed gives the same run, unless the program itself has threads
  /// Operations run as soon as they can. Otherwise each call first makes 0 to 3 steps of random streams: a step is a
  /// chunk of a copy, a block of a kernel (blocks in any order), an event or another operation.
  bool eager = false;
  std::uint32_t chunk_bytes = 4096;
  std::uint64_t total_bytes = 1ULL << 32U;  ///< memory of each device
  bool random_fibers = false;               ///< which thread of a block goes on after a barrier is random
  int devices = 1;
  /// How long a synchronisation waits for a host function that does not return.
  std::uint32_t deadlock_after_ms = 30000;
};

/// Forgets everything and starts anew: memory is freed, handles are invalid, last errors are cleared.
/// Throws std::logic_error, after it did so, if streams held unfinished operations, or memory, streams, events or
/// cuBLAS handles had not been given back; it names them.
void reset(const Options& options = {});

/// The nth call from now (1: the next) of that function fails with the error and does nothing.
/// Launches are "cudaLaunchKernelEx"; calls of cuBLAS fail with CUBLAS_STATUS_EXECUTION_FAILED.
void fail(const char* call, unsigned nth, cudaError_t error);

/// The device is lost when it executes the step after the next `after_steps`; 0: now. What is queued is dropped, and every
/// call that touches the device returns the error until `reset`; freeing still frees.
void lose_device(cudaError_t error = cudaErrorLaunchFailure, std::uint64_t after_steps = 0);

/// A held stream does not advance until it is released.
void hold(cudaStream_t stream, bool held = true);

/// Makes up to that many steps of random streams, as time passes on a device whatever the host does.
void advance(unsigned steps);

struct Counters {
  std::uint64_t device_bytes = 0, device_bytes_peak = 0;  ///< of all devices
  std::uint64_t pinned_bytes = 0, pinned_bytes_peak = 0;  ///< allocated or registered
  std::uint64_t launches = 0;
  std::uint64_t operations = 0;  ///< executed to their end
  std::uint64_t steps = 0;
  std::uint64_t order = 0;  ///< a hash of the order of steps among the streams
};
Counters counters();

/// How often that function was called since `reset`, failing calls included.
std::uint64_t calls(const char* call);

/// How often that kernel was launched since `reset`.
std::uint64_t launches_of(const void* kernel);
template <class... Parameters>
std::uint64_t launches(void (*kernel)(Parameters...)) {
  return launches_of(reinterpret_cast<const void*>(kernel));
}

/// Emulated time of the host.
std::uint64_t clock_ns();

}  // namespace ferry::test::emulated
