// The emulation's controls on a real GPU, for tests that were written on the emulated CUDA. A GPU does some of what they ask
// for by itself; tests/gpu/run leaves out the tests that need more.
#include <cstdio>
#include <cstdlib>

#include "emulated_cuda/emulated_cuda.hpp"

namespace ferry::test::emulated {

namespace {
[[noreturn]] void not_here(const char* what) {
  std::printf("%s: only an emulated GPU does that\n", what);
  std::exit(1);
}
}  // namespace

void reset(const Options& /*options*/) {
  if (const cudaError_t e = cudaDeviceSynchronize(); e != cudaSuccess) throw std::logic_error(cudaGetErrorString(e));
}
void advance(unsigned /*steps*/) {}

void fail(const char* /*call*/, unsigned /*nth*/, cudaError_t /*error*/) {
  not_here("fail");
}
void lose_device(cudaError_t /*error*/, std::uint64_t /*after_steps*/) {
  not_here("lose_device");
}
void hold(cudaStream_t /*stream*/, bool /*held*/) {
  not_here("hold");
}
Counters counters() {
  not_here("counters");
}
std::uint64_t calls(const char* /*call*/) {
  not_here("calls");
}
std::uint64_t launches_of(const void* /*kernel*/) {
  not_here("launches_of");
}
std::uint64_t clock_ns() {
  not_here("clock_ns");
}

}  // namespace ferry::test::emulated
