/// @file
/// Blocks of threads on the host: each thread is a fiber that runs until it waits for others, or to its end.
///
/// One block runs at a time, on the OS thread that steps its stream. A thread that has returned counts as arrived at
/// __syncthreads, __syncwarp and votes, as on hardware since Volta. What has no meaning on hardware (a shuffle that
/// names lanes that do not take part, barriers that never fill) aborts with a sentence.
#pragma once
#include <cstdint>
#include <memory>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "cuda_runtime_api.h"

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
extern const int warpSize;

namespace ferry::test::emulated {

constexpr std::uint32_t lanes = 32;

/// A kernel with its arguments.
class BoundKernel {
 public:
  virtual ~BoundKernel() = default;
  virtual void run() const = 0;  ///< as the current thread
};

template <class... Parameters>
class BoundArguments : public BoundKernel {
 public:
  template <class... Actual>
  explicit BoundArguments(void (*kernel)(Parameters...), Actual&&... actual)
      : kernel_(kernel), arguments_(static_cast<Parameters>(std::forward<Actual>(actual))...) {}

  void run() const override { std::apply(kernel_, arguments_); }

 private:
  void (*kernel_)(Parameters...);
  std::tuple<std::remove_cv_t<Parameters>...> arguments_;
};

/// type: for messages, which cannot know the kernel's name.
cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, const std::type_info& type,
                   std::unique_ptr<BoundKernel> bound);

/// Where lanes meet.
enum class Meeting : std::uint8_t { sync, vote, shuffle, reduction };

/// Called by the last lane to come, on behalf of all: data[lane] for each participating lane.
using Act = void (*)(void* const* data, std::uint32_t participants);

/// Returns after all lanes of the mask came and one of them acted.
void meet_warp(Meeting meeting, std::uint32_t mask, void* data, Act act);
void meet_block();

/// Notes that the current thread waits for the kernels before its own, as each thread of an early launch must.
void note_waited();

/// The number of the current thread in its block.
extern std::uint32_t current_thread;
inline std::uint32_t thread_number() {
  return current_thread;
}
/// The lanes of the current warp that the block has.
std::uint32_t lanes_of_warp();

/// For __trap or misuse: aborts, and names kernel, block and thread.
[[noreturn]] void die_in_kernel(const char* sentence);

/// Threads of a warp exchange values: each gives one and takes the value of a lane.
template <class T>
T shuffle(std::uint32_t mask, T value, std::uint32_t source) {
  struct Exchange {
    T value;
    T taken;
    std::uint32_t source;
  };
  Exchange mine{value, value, source};
  meet_warp(Meeting::shuffle, mask, &mine, [](void* const* data, std::uint32_t participants) {
    for (std::uint32_t left = participants; left != 0; left &= left - 1) {
      auto& to = *static_cast<Exchange*>(data[__builtin_ctz(left)]);
      if ((participants >> to.source & 1U) == 0)
        die_in_kernel("a shuffle takes from a lane that its mask does not name");
      to.taken = static_cast<Exchange*>(data[to.source])->value;
    }
  });
  return mine.taken;
}

std::uint32_t ballot(std::uint32_t mask, bool predicate);

}  // namespace ferry::test::emulated
