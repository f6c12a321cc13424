// The emulator itself: what it must let happen, what it must find, and that its blocks compute.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cub/cub.cuh"
#include "cublas_v2.h"
#include "cuda_runtime.h"
#include "emulated_cuda.hpp"
#include "fiber.hpp"  // which sanitizer

namespace {

namespace emulated = ferry::test::emulated;
using emulated::Options;

/// A machine of its own for a test; what the test leaves behind fails it.
struct Fresh {
  explicit Fresh(const Options& options = {}) { emulated::reset(options); }
  ~Fresh() noexcept(false) {
    if (std::uncaught_exceptions() == 0) emulated::reset();
  }
};

Options seeded(std::uint64_t seed, bool random_fibers = false) {
  Options options;
  options.seed = seed;
  options.random_fibers = random_fibers;
  return options;
}
Options eager() {
  Options options;
  options.eager = true;
  return options;
}

#define OK(call) REQUIRE((call) == cudaSuccess)

struct StreamOwner {
  StreamOwner() { OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~StreamOwner() { cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};
struct EventOwner {
  explicit EventOwner(unsigned flags = cudaEventDisableTiming) { OK(cudaEventCreateWithFlags(&event, flags)); }
  ~EventOwner() { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
};
template <class T>
struct DeviceArray {
  explicit DeviceArray(std::size_t n) : count(n) { OK(cudaMalloc(&data, n * sizeof(T))); }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) {
    OK(cudaMemcpy(data, from.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data); }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> to(count);
    OK(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
  T* data = nullptr;
  std::size_t count;
};
template <class T>
struct PinnedArray {
  explicit PinnedArray(std::size_t n) : count(n) { OK(cudaMallocHost(&data, n * sizeof(T))); }
  ~PinnedArray() { cudaFreeHost(data); }
  T* data = nullptr;
  std::size_t count;
};

cudaLaunchConfig_t shape(dim3 grid, dim3 block, cudaStream_t stream = nullptr) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  return config;
}
template <class... Parameters, class... Actual>
void run(dim3 grid, dim3 block, void (*kernel)(Parameters...), Actual... actual) {
  const cudaLaunchConfig_t config = shape(grid, block);
  OK(cudaLaunchKernelEx(&config, kernel, actual...));
  OK(cudaStreamSynchronize(nullptr));
}

/// What a child process prints when f aborts it; empty if it was not aborted.
template <class F>
std::string last_words(const F& f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::fflush(stdout);  // not to be printed twice
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return ended ? "" : text;
}
bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::string left_behind() {
  try {
    emulated::reset();
  } catch (const std::logic_error& e) {
    return e.what();
  }
  return "";
}

// Kernels

__global__ void store_index(std::uint32_t* to, std::uint32_t n) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = i;
}

__global__ void add_one(float* x, std::uint32_t n) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}

__global__ void copy_words(const std::uint32_t* from, std::uint32_t* to, std::uint32_t n) {
  for (std::uint32_t i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}

struct Big {
  std::uint32_t words[800];
};
__global__ void put(std::uint32_t* to, const __grid_constant__ Big big, std::uint16_t n) {
  if (threadIdx.x < n) to[threadIdx.x] = big.words[threadIdx.x];
}

__global__ void where(std::uint32_t* seen, uint3* at) {
  const std::uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const std::uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
  const std::uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  __syncthreads();  // and still the same thread
  atomicAdd(&seen[block * threads + thread], 1U);
  at[block * threads + thread] = make_uint3(threadIdx.x, threadIdx.y, threadIdx.z);
}

/// Each step adds the neighbour's value of the step before.
__global__ void ring(std::uint32_t* x, std::uint32_t steps) {
  __shared__ std::uint32_t values[2][128];
  const std::uint32_t t = threadIdx.x, n = blockDim.x;
  values[0][t] = x[t];
  for (std::uint32_t s = 0; s < steps; ++s) {
    __syncthreads();
    values[(s + 1) % 2][t] = values[s % 2][t] + values[s % 2][(t + 1) % n];
  }
  x[t] = values[steps % 2][t];
}

/// The same, but for a barrier in the loop.
__global__ void ring_without_barrier(std::uint32_t* x, std::uint32_t steps) {
  __shared__ std::uint32_t values[2][128];
  const std::uint32_t t = threadIdx.x, n = blockDim.x;
  values[0][t] = x[t];
  __syncthreads();
  for (std::uint32_t s = 0; s < steps; ++s) values[(s + 1) % 2][t] = values[s % 2][t] + values[s % 2][(t + 1) % n];
  x[t] = values[steps % 2][t];
}

template <class T>
__global__ void shuffles(T* out) {  // [7, 32]
  const unsigned lane = threadIdx.x;
  const T mine = static_cast<T>(100 + lane);
  out[lane] = __shfl_sync(~0U, mine, 5);
  out[32 + lane] = __shfl_xor_sync(~0U, mine, 3);
  out[64 + lane] = __shfl_down_sync(~0U, mine, 4);
  out[96 + lane] = __shfl_up_sync(~0U, mine, 4);
  out[128 + lane] = __shfl_sync(~0U, mine, 9, 8);
  out[160 + lane] = __shfl_down_sync(~0U, mine, 3, 8);
  out[192 + lane] = __shfl_up_sync(~0U, mine, 3, 8);
}

/// Halves of a warp go different ways, a different number of times, and meet again.
__global__ void halves(std::uint32_t* out) {
  const std::uint32_t lane = threadIdx.x;
  const std::uint32_t mask = lane < 16 ? 0xFFFFU : 0xFFFF0000U;
  std::uint32_t x = lane;
  for (std::uint32_t i = 0; i < (lane < 16 ? 1U : 5U); ++i) x += __shfl_xor_sync(mask, x, 1);
  __syncwarp(mask);
  out[lane] = __shfl_xor_sync(~0U, x, 16);
}

__global__ void votes(std::uint32_t* out) {
  const std::uint32_t lane = threadIdx.x;
  if (lane >= 20) return;  // the rest votes without them
  const unsigned odd = __ballot_sync(~0U, static_cast<int>(lane % 2));
  const int any = __any_sync(~0U, lane == 7), none = __any_sync(~0U, lane == 25);
  const int all = __all_sync(~0U, lane < 20), most = __all_sync(~0U, lane < 19);
  __syncwarp();
  if (lane == 0) {
    out[0] = odd;
    out[1] = static_cast<std::uint32_t>(any * 8 + none * 4 + all * 2 + most);
  }
}

__global__ void sum_warps(const float* x, float* sums, std::uint32_t columns) {  // a row a warp
  using Reduce = cub::WarpReduce<float>;
  __shared__ Reduce::TempStorage storage[4];
  const std::uint32_t warp = threadIdx.x / 32, row = blockIdx.x * 4 + warp;
  float sum = 0;
  for (std::uint32_t c = threadIdx.x % 32; c < columns; c += 32) sum += x[row * columns + c];
  sum = Reduce(storage[warp]).Sum(sum);
  if (threadIdx.x % 32 == 0) sums[row] = sum;
}

template <int threads>
__global__ void reduce_block(const float* x, float* out, std::uint32_t n) {  // [2]: sum and largest
  using Reduce = cub::BlockReduce<float, threads>;
  __shared__ typename Reduce::TempStorage storage;
  float sum = 0, most = -INFINITY;
  for (std::uint32_t i = threadIdx.x; i < n; i += threads) {
    sum += x[i];
    most = fmaxf(most, x[i]);
  }
  sum = Reduce(storage).Sum(sum);
  __syncthreads();
  most = Reduce(storage).Reduce(most, [](float a, float b) { return a < b ? b : a; });
  if (threadIdx.x == 0) {
    out[0] = sum;
    out[1] = most;
  } else if (!std::isnan(sum)) {
    out[0] = NAN;  // only the first thread has it
  }
}

/// Its storage is used again too early.
__global__ void reduce_block_twice(float* out) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ Reduce::TempStorage storage;
  const float a = Reduce(storage).Sum(1);
  const float b = Reduce(storage).Sum(2);
  if (threadIdx.x == 0) {
    out[0] = a;
    out[1] = b;
  }
}

/// Blocks leave partial sums; the last to finish adds them.
__global__ void last_block_adds(const float* x, float* partial, float* sum, unsigned* finished) {
  using Reduce = cub::BlockReduce<float, 64>;
  __shared__ Reduce::TempStorage storage;
  __shared__ bool last;
  const float mine = Reduce(storage).Sum(x[blockIdx.x * 64 + threadIdx.x]);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = mine;
    __threadfence();
    last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  float all = 0;
  for (std::uint32_t b = 0; b < gridDim.x; ++b) all += partial[b];
  *sum = all;
}

__global__ void block_order(std::uint32_t* next, std::uint32_t* order) {
  order[atomicAdd(next, 1U)] = blockIdx.x;
}

__global__ void leave_early(std::uint32_t* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  if (threadIdx.x == 39) out[0] = 1;
  __syncthreads();
  if (threadIdx.x == 0) out[1] = out[0] + 1;
}

[[maybe_unused]] __global__ void shared_before_stored(std::uint32_t* out) {
  __shared__ std::uint32_t value;
  out[blockIdx.x] = value;
  value = 7;
}

__global__ void shuffle_of_half() {
  if (threadIdx.x < 16) __shfl_sync(~0U, 1, 0);
}
__global__ void shuffle_outside_mask() {
  __shfl_sync(0xFFU, 1, 0);
}
__global__ void shuffle_from_outside() {
  if (threadIdx.x < 8) __shfl_sync(0xFFU, 1, 20);
}
__global__ void barrier_against_shuffle() {
  if (threadIdx.x % 32 == 3) {
    __syncthreads();
  } else {
    __shfl_sync(~0U, 1, 0);
  }
}
__global__ void different_meetings() {
  if (threadIdx.x == 3) {
    __ballot_sync(~0U, 1);
  } else {
    __shfl_sync(~0U, 1, 0);
  }
}
__global__ void trap() {
  if (threadIdx.x == 5) __trap();
}
[[maybe_unused]] __global__ void read(const std::uint32_t* from, std::uint32_t at, std::uint32_t* to) {
  *to = from[at];
}
[[maybe_unused]] __global__ void read_shared(std::uint32_t at, std::uint32_t* to) {
  __shared__ std::uint32_t values[8];
  values[threadIdx.x] = threadIdx.x;
  __syncthreads();
  to[threadIdx.x] = values[threadIdx.x + at];
}

}  // namespace

// Streams

TEST_CASE("emulated CUDA: a consumer without a wait sees a copy half landed under some seed, with a wait never") {
  constexpr std::uint32_t n = 16384;
  const auto wrong = [&](std::uint64_t seed, bool wait) {
    const Fresh fresh(seeded(seed));
    const StreamOwner copies, computes;
    const EventOwner landed;
    const PinnedArray<std::uint32_t> source(n);
    std::iota(source.data, source.data + n, 0U);
    const DeviceArray<std::uint32_t> device(n), seen(n);
    OK(cudaMemcpyAsync(device.data, source.data, n * 4, cudaMemcpyHostToDevice, copies.stream));
    OK(cudaEventRecord(landed.event, copies.stream));
    if (wait) OK(cudaStreamWaitEvent(computes.stream, landed.event));
    const cudaLaunchConfig_t config = shape(1, 128, computes.stream);
    OK(cudaLaunchKernelEx(&config, copy_words, device.data, seen.data, n));
    OK(cudaDeviceSynchronize());
    const std::vector<std::uint32_t> host = seen.host();
    return static_cast<std::uint32_t>(
        std::count_if(host.begin(), host.end(), [&](const std::uint32_t& v) { return v != &v - host.data(); }));
  };
  std::set<std::uint32_t> counts;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    counts.insert(wrong(seed, false));
    REQUIRE(wrong(seed, true) == 0);
  }
  CHECK(counts.count(0) == 1);  // now and then it works by luck
  CHECK(counts.size() > 4);     // and otherwise it fails in several ways
  for (const std::uint32_t c : counts) CHECK(c % 1024 == 0);
}

TEST_CASE("emulated CUDA: pinned memory is read when the copy runs, other memory at the call") {
  const Fresh fresh;
  const StreamOwner s;
  emulated::hold(s.stream);
  const DeviceArray<int> to(2);
  const PinnedArray<int> pinned(1);
  int pageable = 1;
  pinned.data[0] = 1;
  OK(cudaMemcpyAsync(to.data, pinned.data, 4, cudaMemcpyHostToDevice, s.stream));
  OK(cudaMemcpyAsync(to.data + 1, &pageable, 4, cudaMemcpyHostToDevice, s.stream));
  pinned.data[0] = pageable = 2;
  emulated::hold(s.stream, false);
  OK(cudaStreamSynchronize(s.stream));
  CHECK(to.host() == std::vector<int>{2, 1});
}

TEST_CASE("emulated CUDA: a copy to pageable memory has landed at return, one to pinned memory when waited for") {
  const Fresh fresh;
  const StreamOwner s;
  const DeviceArray<int> from(std::vector<int>(5000, 7));
  std::vector<int> pageable(5000);
  OK(cudaMemcpyAsync(pageable.data(), from.data, 20000, cudaMemcpyDeviceToHost, s.stream));
  CHECK(pageable == std::vector<int>(5000, 7));
  const PinnedArray<int> pinned(5000);
  std::fill(pinned.data, pinned.data + 5000, 0);
  OK(cudaMemcpyAsync(pinned.data, from.data, 20000, cudaMemcpyDeviceToHost, s.stream));
  CHECK(pinned.data[4999] == 0);
  CHECK(cudaStreamQuery(s.stream) == cudaErrorNotReady);
  OK(cudaStreamSynchronize(s.stream));
  CHECK(pinned.data[4999] == 7);
  CHECK(cudaStreamQuery(s.stream) == cudaSuccess);
  // Registered memory is pinned, too.
  OK(cudaHostRegister(pageable.data(), 20000, cudaHostRegisterDefault));
  OK(cudaMemsetAsync(from.data, 1, 20000, s.stream));
  OK(cudaMemcpyAsync(pageable.data(), from.data, 20000, cudaMemcpyDeviceToHost, s.stream));
  CHECK(pageable[4999] == 7);
  OK(cudaStreamSynchronize(s.stream));
  CHECK(pageable[4999] == 0x01010101);
  OK(cudaHostUnregister(pageable.data()));
}

TEST_CASE("emulated CUDA: the same seed makes the same steps, another makes others") {
  const auto order = [](std::uint64_t seed) {
    const Fresh fresh(seeded(seed));
    const StreamOwner a, b;
    const DeviceArray<std::byte> to(200000);
    OK(cudaMemsetAsync(to.data, 1, 100000, a.stream));
    OK(cudaMemsetAsync(to.data + 100000, 1, 100000, b.stream));
    OK(cudaDeviceSynchronize());
    CHECK(emulated::counters().steps == 50);
    CHECK(emulated::counters().operations == 2);
    return emulated::counters().order;
  };
  CHECK(order(3) == order(3));
  std::set<std::uint64_t> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) orders.insert(order(seed));
  CHECK(orders.size() == 10);
}

TEST_CASE("emulated CUDA: calls advance streams by up to three steps, and others do not at all") {
  const Fresh fresh;
  const StreamOwner s;
  const DeviceArray<std::byte> to(1 << 20);
  OK(cudaMemsetAsync(to.data, 1, 1 << 20, s.stream));  // 256 steps
  std::uint64_t before = emulated::counters().steps;
  std::set<std::uint64_t> made;
  for (int i = 0; i < 60; ++i) {
    CHECK(cudaStreamQuery(s.stream) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
    made.insert(emulated::counters().steps - before);
    before = emulated::counters().steps;
  }
  CHECK(made == std::set<std::uint64_t>{0, 1, 2, 3});
  emulated::advance(10);
  CHECK(emulated::counters().steps == before + 10);
  OK(cudaStreamSynchronize(s.stream));
  CHECK(emulated::counters().steps == 256);
}

TEST_CASE("emulated CUDA: eager streams are done at return") {
  const Fresh fresh(eager());
  const StreamOwner a, b;
  const EventOwner e;
  const DeviceArray<std::uint32_t> to(1000);
  const cudaLaunchConfig_t config = shape(8, 128, a.stream);
  OK(cudaLaunchKernelEx(&config, store_index, to.data, 1000U));
  CHECK(cudaStreamQuery(a.stream) == cudaSuccess);
  CHECK(emulated::counters().steps == 1);
  // Work that waits for a held stream runs when that stream is released.
  emulated::hold(a.stream);
  OK(cudaMemsetAsync(to.data, 0, 4000, a.stream));
  OK(cudaEventRecord(e.event, a.stream));
  OK(cudaStreamWaitEvent(b.stream, e.event));
  CHECK(cudaStreamQuery(b.stream) == cudaErrorNotReady);
  emulated::hold(a.stream, false);
  CHECK(cudaStreamQuery(b.stream) == cudaSuccess);
}

TEST_CASE("emulated CUDA: a wait is for the last record before it, and destroyed handles let their work finish") {
  const Fresh fresh;
  const StreamOwner a, b, c;
  const DeviceArray<int> to(1);
  {
    const EventOwner e;
    CHECK(cudaEventQuery(e.event) == cudaSuccess);  // never recorded
    OK(cudaEventSynchronize(e.event));
    OK(cudaStreamWaitEvent(c.stream, e.event));
    OK(cudaStreamSynchronize(c.stream));
    OK(cudaEventRecord(e.event, a.stream));
    OK(cudaEventSynchronize(e.event));
    OK(cudaStreamWaitEvent(b.stream, e.event));  // the event is over already
    emulated::hold(a.stream);
    OK(cudaEventRecord(e.event, a.stream));
    OK(cudaStreamSynchronize(b.stream));
    CHECK(cudaEventQuery(e.event) == cudaErrorNotReady);
    OK(cudaStreamWaitEvent(b.stream, e.event));
    emulated::hold(b.stream, false);
  }
  for (int i = 0; i < 50; ++i) CHECK(cudaStreamQuery(b.stream) == cudaErrorNotReady);
  cudaStream_t d = nullptr;
  OK(cudaStreamCreate(&d));
  OK(cudaMemsetAsync(to.data, 0, 4, d));
  OK(cudaStreamDestroy(d));
  CHECK(cudaMemsetAsync(to.data, 1, 4, d) == cudaErrorInvalidResourceHandle);
  emulated::hold(a.stream, false);
  OK(cudaStreamSynchronize(b.stream));
  OK(cudaDeviceSynchronize());
  CHECK(to.host()[0] == 0);
}

TEST_CASE("emulated CUDA: times of events grow with bytes and follow waits") {
  const Fresh fresh;
  const StreamOwner a, b;
  const EventOwner begin(cudaEventDefault), small(cudaEventDefault), large(cudaEventDefault), other(cudaEventDefault);
  const EventOwner untimed;
  const DeviceArray<std::byte> to(3000000);
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begin.event, small.event) == cudaErrorInvalidResourceHandle);
  OK(cudaEventRecord(begin.event, a.stream));
  OK(cudaMemsetAsync(to.data, 1, 1000000, a.stream));
  OK(cudaEventRecord(small.event, a.stream));
  OK(cudaMemsetAsync(to.data, 1, 3000000, a.stream));
  OK(cudaEventRecord(large.event, a.stream));
  OK(cudaStreamWaitEvent(b.stream, large.event));
  OK(cudaEventRecord(other.event, b.stream));
  OK(cudaEventRecord(untimed.event, b.stream));
  CHECK(cudaEventElapsedTime(&ms, begin.event, large.event) == cudaErrorNotReady);
  OK(cudaDeviceSynchronize());
  OK(cudaEventElapsedTime(&ms, begin.event, small.event));
  CHECK(ms == doctest::Approx(1.001).epsilon(0.001));
  OK(cudaEventElapsedTime(&ms, small.event, large.event));
  CHECK(ms == doctest::Approx(3.001).epsilon(0.001));
  OK(cudaEventElapsedTime(&ms, large.event, other.event));
  CHECK(ms == 0);
  CHECK(cudaEventElapsedTime(&ms, begin.event, untimed.event) == cudaErrorInvalidResourceHandle);
  CHECK(emulated::clock_ns() > 4000000);
}

TEST_CASE("emulated CUDA: host functions run in their stream's order, may not call CUDA, and may wait for the caller") {
  for (const bool at_once : {true, false}) {
    Options options;
    options.eager = at_once;
    const Fresh fresh(options);
    const StreamOwner a;
    const PinnedArray<int> pinned(2);
    pinned.data[0] = 1;
    const DeviceArray<int> device(1);
    struct User {
      int* value;
      int seen = 0;
      cudaError_t error = cudaSuccess;
      std::atomic<bool> may_go{true};
    } user{pinned.data + 1};
    const auto function = [](void* p) {
      auto& u = *static_cast<User*>(p);
      while (!u.may_go) std::this_thread::yield();
      u.seen = *u.value;
      u.error = cudaStreamSynchronize(nullptr);
    };
    OK(cudaMemcpyAsync(device.data, pinned.data, 4, cudaMemcpyHostToDevice, a.stream));
    OK(cudaMemcpyAsync(pinned.data + 1, device.data, 4, cudaMemcpyDeviceToHost, a.stream));
    OK(cudaLaunchHostFunc(a.stream, function, &user));
    OK(cudaStreamSynchronize(a.stream));
    CHECK(user.seen == 1);
    CHECK(user.error == cudaErrorNotPermitted);
    user.may_go = false;
    *user.value = 5;
    OK(cudaLaunchHostFunc(a.stream, function, &user));
    for (int i = 0; i < 10; ++i) CHECK(cudaStreamQuery(a.stream) == cudaErrorNotReady);  // and the calls do not hang
    user.may_go = true;
    OK(cudaStreamSynchronize(a.stream));
    CHECK(user.seen == 5);
  }
}

TEST_CASE("emulated CUDA: a deadlock aborts and names what waits") {
  const std::string held = last_words([] {
    emulated::reset();
    const StreamOwner a, b;
    const EventOwner e;
    int* p = nullptr;
    OK(cudaMalloc(&p, 4));
    emulated::hold(a.stream);
    OK(cudaMemsetAsync(p, 0, 4, a.stream));
    OK(cudaEventRecord(e.event, a.stream));
    OK(cudaStreamWaitEvent(b.stream, e.event));
    cudaStreamSynchronize(b.stream);
  });
  CHECK(holds(held, "deadlock: no stream can advance"));
  CHECK(holds(held, "stream 1 (held): 2 operations, first: memset of 4 bytes"));
  CHECK(holds(held, "stream 2: 1 operation, first: wait for event 3"));
#if !defined(EMULATED_TSAN)  // it lets no child start a thread
  const std::string function = last_words([] {
    Options options;
    options.deadlock_after_ms = 100;
    emulated::reset(options);
    OK(cudaLaunchHostFunc(
        nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::hours(1)); }, nullptr));
    cudaStreamSynchronize(nullptr);
  });
  CHECK(holds(function, "deadlock: a host function did not return for 100 ms"));
#endif
}

// Memory and errors

TEST_CASE("emulated CUDA: wrong arguments get CUDA's errors") {
  const Fresh fresh;
  const StreamOwner s;
  const DeviceArray<std::byte> a(100), b(100);
  const PinnedArray<std::byte> pinned(100);
  std::vector<std::byte> host(100);
  const auto copy = [&](void* to, const void* from, std::size_t n, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, n, kind, s.stream);
  };
  CHECK(copy(a.data, host.data(), 100, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(copy(a.data, host.data(), 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(a.data + 1, host.data(), 100, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(a.data + 99, host.data(), 1, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(copy(host.data(), host.data(), 100, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(a.data, b.data, 100, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(a.data, b.data, 100, cudaMemcpyDefault) == cudaSuccess);
  CHECK(copy(pinned.data, b.data, 101, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(a.data, pinned.data + 1, 100, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(a.data, nullptr, 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(a.data, host.data(), 1, static_cast<cudaMemcpyKind>(7)) == cudaErrorInvalidMemcpyDirection);
  CHECK(copy(nullptr, nullptr, 0, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemset(a.data, 0, 101) == cudaErrorInvalidValue);
  CHECK(cudaMemset(host.data(), 0, 1) == cudaErrorInvalidValue);
  CHECK(cudaFree(a.data + 1) == cudaErrorInvalidValue);
  CHECK(cudaFree(pinned.data) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(a.data) == cudaErrorInvalidValue);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(cudaHostRegister(pinned.data + 10, 10, 0) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(cudaHostUnregister(host.data()) == cudaErrorHostMemoryNotRegistered);
  void* p = host.data();
  CHECK(cudaHostGetDevicePointer(&p, host.data(), 0) == cudaErrorInvalidValue);
  OK(cudaHostGetDevicePointer(&p, pinned.data + 3, 0));
  CHECK(p == pinned.data + 3);
  cudaPointerAttributes attributes{};
  OK(cudaPointerGetAttributes(&attributes, a.data + 50));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  OK(cudaPointerGetAttributes(&attributes, pinned.data));
  CHECK(attributes.type == cudaMemoryTypeHost);
  OK(cudaPointerGetAttributes(&attributes, host.data()));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  cudaStream_t none = nullptr;
  CHECK(cudaStreamCreateWithFlags(&none, 8) == cudaErrorInvalidValue);
  CHECK(cudaStreamDestroy(nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(std::string(cudaGetErrorName(cudaErrorInvalidDevice)) == "cudaErrorInvalidDevice");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
}

TEST_CASE("emulated CUDA: launches are refused as CUDA refuses them") {
  const Fresh fresh;
  const DeviceArray<std::uint32_t> to(8);
  const auto launch = [&](dim3 grid, dim3 block, std::size_t shared = 0, cudaStream_t stream = nullptr) {
    cudaLaunchConfig_t config = shape(grid, block, stream);
    config.dynamicSmemBytes = shared;
    return cudaLaunchKernelEx(&config, store_index, to.data, 8U);
  };
  CHECK(launch(1, 1024) == cudaSuccess);
  CHECK(launch(1, 1025) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 0) == cudaErrorInvalidConfiguration);
  CHECK(launch(0, 32) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, {32, 33, 1}) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, {1, 1, 65}) == cudaErrorInvalidConfiguration);
  CHECK(launch({1, 65536, 1}, 1) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 32, 16) == cudaErrorInvalidValue);
  cudaStream_t gone = nullptr;
  OK(cudaStreamCreate(&gone));
  OK(cudaStreamDestroy(gone));
  CHECK(launch(1, 32, 0, gone) == cudaErrorInvalidResourceHandle);
  CHECK(emulated::counters().launches == 1);
  CHECK(emulated::launches(store_index) == 1);
  CHECK(emulated::launches(add_one) == 0);
  CHECK(emulated::calls("cudaLaunchKernelEx") == 9);
  OK(cudaDeviceSynchronize());
}

TEST_CASE("emulated CUDA: memory is counted, limited, and not zero") {
  Options options;
  options.total_bytes = 1000;
  const Fresh fresh(options);
  std::size_t free = 0, total = 0;
  {
    const DeviceArray<std::uint8_t> a(600);
    CHECK(a.host() == std::vector<std::uint8_t>(600, 0xFF));
    void* p = &free;
    CHECK(cudaMalloc(&p, 401) == cudaErrorMemoryAllocation);
    CHECK(p == nullptr);
    OK(cudaMemGetInfo(&free, &total));
    CHECK(free == 400);
    CHECK(total == 1000);
    const DeviceArray<std::uint8_t> b(400);
    const PinnedArray<std::uint8_t> pinned(5000);
    CHECK(emulated::counters().device_bytes == 1000);
    CHECK(emulated::counters().pinned_bytes == 5000);
  }
  CHECK(emulated::counters().device_bytes == 0);
  CHECK(emulated::counters().device_bytes_peak == 1000);
  CHECK(emulated::counters().pinned_bytes == 0);
  CHECK(emulated::counters().pinned_bytes_peak == 5000);
  void* p = nullptr;
  OK(cudaMalloc(&p, 0));
  CHECK(p == nullptr);
}

TEST_CASE("emulated CUDA: freeing waits for the device") {
  const Fresh fresh;
  const StreamOwner s;
  int* p = nullptr;
  OK(cudaMalloc(&p, 1 << 20));
  void* unused = nullptr;
  OK(cudaMallocHost(&unused, 4));
  OK(cudaMemsetAsync(p, 0, 1 << 20, s.stream));
  OK(cudaFree(p));
  CHECK(cudaStreamQuery(s.stream) == cudaSuccess);
  CHECK(cudaFree(p) == cudaErrorInvalidValue);
  OK(cudaFreeHost(unused));
}

TEST_CASE("emulated CUDA: devices") {
  {
    Options options;
    options.devices = 0;
    const Fresh fresh(options);
    int n = 7;
    CHECK(cudaGetDeviceCount(&n) == cudaErrorNoDevice);
    CHECK(n == 0);
    void* p = nullptr;
    CHECK(cudaMalloc(&p, 4) == cudaErrorNoDevice);
    CHECK(cudaStreamSynchronize(nullptr) == cudaErrorNoDevice);
  }
  Options options;
  options.devices = 2;
  const Fresh fresh(options);
  const StreamOwner first;
  const EventOwner event;
  OK(cudaSetDevice(1));
  int n = 0, device = 0, attribute = 0;
  OK(cudaGetDeviceCount(&n));
  OK(cudaGetDevice(&device));
  CHECK(n == 2);
  CHECK(device == 1);
  const cudaLaunchConfig_t config = shape(1, 1, first.stream);
  CHECK(cudaLaunchKernelEx(&config, trap) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event.event, nullptr) == cudaErrorInvalidResourceHandle);
  OK(cudaEventRecord(event.event, first.stream));
  OK(cudaDeviceGetAttribute(&attribute, cudaDevAttrComputeCapabilityMajor, 1));
  CHECK(attribute == 6);
  cudaDeviceProp properties{};
  OK(cudaGetDeviceProperties(&properties, 1));
  CHECK(std::string(properties.name) == "Emulated device");
  CHECK(properties.totalGlobalMem == 1ULL << 32U);
  CHECK(cudaGetDeviceProperties(&properties, 2) == cudaErrorInvalidDevice);
  OK(cudaSetDevice(0));
  OK(cudaStreamSynchronize(first.stream));
}

TEST_CASE("emulated CUDA: the nth call fails when asked to and does nothing") {
  const Fresh fresh;
  const StreamOwner s;
  const DeviceArray<std::uint32_t> to(std::vector<std::uint32_t>(32, 9));
  emulated::fail("cudaMemsetAsync", 2, cudaErrorInvalidValue);
  emulated::fail("cudaLaunchKernelEx", 1, cudaErrorLaunchOutOfResources);
  emulated::fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
  CHECK(cudaMemsetAsync(to.data, 0, 4, s.stream) == cudaSuccess);
  CHECK(cudaMemsetAsync(to.data, 0, 128, s.stream) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(to.data + 1, 0, 4, s.stream) == cudaSuccess);
  const cudaLaunchConfig_t config = shape(1, 32, s.stream);
  CHECK(cudaLaunchKernelEx(&config, store_index, to.data, 32U) == cudaErrorLaunchOutOfResources);
  CHECK(cudaPeekAtLastError() == cudaErrorLaunchOutOfResources);
  void* p = nullptr;
  CHECK(cudaMalloc(&p, 4) == cudaErrorMemoryAllocation);
  OK(cudaMalloc(&p, 4));
  OK(cudaFree(p));
  OK(cudaStreamSynchronize(s.stream));
  const std::vector<std::uint32_t> host = to.host();
  CHECK(host[0] == 0);
  CHECK(host[1] == 0);
  CHECK(host[2] == 9);
  CHECK(emulated::calls("cudaMemsetAsync") == 3);
}

TEST_CASE("emulated CUDA: a lost device fails every call until reset, and what was queued never happens") {
  const Fresh fresh;
  {
    const StreamOwner s;
    const EventOwner e;
    PinnedArray<int> pinned(100000);
    std::fill(pinned.data, pinned.data + pinned.count, 3);
    DeviceArray<int> device(100000);
    OK(cudaMemsetAsync(device.data, 0, 400000, s.stream));
    OK(cudaStreamSynchronize(s.stream));
    bool called = false;
    OK(cudaMemcpyAsync(device.data, pinned.data, 400000, cudaMemcpyHostToDevice, s.stream));
    OK(cudaMemcpyAsync(pinned.data, device.data, 400000, cudaMemcpyDeviceToHost, s.stream));
    OK(cudaEventRecord(e.event, s.stream));
    OK(cudaLaunchHostFunc(
        s.stream, [](void* p) { *static_cast<bool*>(p) = true; }, &called));
    emulated::lose_device(cudaErrorECCUncorrectable, 120);  // the first copy takes 98 steps
    CHECK(cudaStreamSynchronize(s.stream) == cudaErrorECCUncorrectable);
    CHECK(cudaEventSynchronize(e.event) == cudaErrorECCUncorrectable);
    CHECK(cudaEventQuery(e.event) == cudaErrorECCUncorrectable);
    CHECK(cudaMemcpyAsync(device.data, pinned.data, 4, cudaMemcpyHostToDevice, s.stream) == cudaErrorECCUncorrectable);
    CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
    CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
    CHECK(!called);
    CHECK(cudaFreeHost(pinned.data) == cudaErrorECCUncorrectable);
    pinned.data = nullptr;
  }
  CHECK(emulated::counters().device_bytes == 0);
  emulated::reset();
  CHECK(cudaGetLastError() == cudaSuccess);
  emulated::lose_device();
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
}

TEST_CASE("emulated CUDA: reset names what was left") {
  emulated::reset();
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cublasHandle_t blas = nullptr;
  void *device = nullptr, *pinned = nullptr;
  std::vector<int> registered(10);
  OK(cudaStreamCreate(&stream));
  OK(cudaEventCreate(&event));
  REQUIRE(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS);
  OK(cudaMalloc(&device, 8192));
  OK(cudaMallocHost(&pinned, 12));
  OK(cudaHostRegister(registered.data(), 40, 0));
  emulated::hold(stream);
  OK(cudaMemsetAsync(device, 0, 8192, stream));
  OK(cudaEventRecord(event, stream));
  const std::string left = left_behind();
  CAPTURE(left);
  CHECK(holds(left, "stream 1 has 2 unfinished operations, first: memset of 8192 bytes"));
  CHECK(holds(left, "stream 1 was not destroyed"));
  CHECK(holds(left, "event 2 was not destroyed"));
  CHECK(holds(left, "8192 bytes of device memory were not freed"));
  CHECK(holds(left, "12 bytes of pinned memory were not freed"));
  CHECK(holds(left, "40 bytes of host memory are still registered"));
  CHECK(holds(left, "1 cuBLAS handle not destroyed"));
  CHECK(left_behind().empty());
  CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaFree(device) == cudaErrorInvalidValue);
  CHECK(cublasDestroy(blas) == CUBLAS_STATUS_SUCCESS);
  CHECK(left_behind().empty());
}

TEST_CASE("emulated CUDA: threads of the host have errors and devices of their own, and may call at once") {
  const Fresh fresh(seeded(4));
  CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
  const auto work = [](cudaError_t& last) {
    last = cudaGetLastError();
    cudaStream_t s = nullptr;
    int* p = nullptr;
    cudaStreamCreate(&s);
    cudaMalloc(&p, 40000);
    const cudaLaunchConfig_t config = shape(10, 128, s);
    for (int i = 0; i < 20; ++i) {
      cudaMemsetAsync(p, 0, 40000, s);
      cudaLaunchKernelEx(&config, ring, reinterpret_cast<std::uint32_t*>(p), 3U);
      cudaStreamSynchronize(s);
    }
    cudaFree(p);
    cudaStreamDestroy(s);
  };
  cudaError_t first = cudaErrorUnknown, second = cudaErrorUnknown;
  std::thread other(work, std::ref(first));
  work(second);
  other.join();
  CHECK(first == cudaSuccess);
  CHECK(second == cudaErrorInvalidDevice);
}

// Blocks

TEST_CASE("emulated CUDA: each thread of a grid runs once and knows where it is") {
  for (const Options& options : {seeded(1), seeded(2, true), eager()}) {
    const Fresh fresh(options);
    const dim3 grid(3, 2, 2), block(5, 7, 3);
    const std::uint32_t n = 12 * 105;
    const DeviceArray<std::uint32_t> seen(std::vector<std::uint32_t>(n, 0));
    const DeviceArray<uint3> at(n);
    run(grid, block, where, seen.data, at.data);
    CHECK(seen.host() == std::vector<std::uint32_t>(n, 1));
    const std::vector<uint3> places = at.host();
    bool right = true;
    for (std::uint32_t i = 0; i < n; ++i) {
      const uint3 p = places[i];
      right &= p.x == i % 5 && p.y == i / 5 % 7 && p.z == i % 105 / 35;
    }
    CHECK(right);
  }
}

TEST_CASE("emulated CUDA: arguments are converted and copied at the launch") {
  const Fresh fresh;
  const StreamOwner s;
  const DeviceArray<std::uint32_t> to(800);
  auto big = std::make_unique<Big>();
  std::iota(big->words, big->words + 800, 5U);
  const cudaLaunchConfig_t config = shape(1, 800, s.stream);
  emulated::hold(s.stream);
  OK(cudaLaunchKernelEx(&config, put, to.data, *big, 700));
  big.reset();
  emulated::hold(s.stream, false);
  OK(cudaStreamSynchronize(s.stream));
  const std::vector<std::uint32_t> host = to.host();
  CHECK(host[0] == 5);
  CHECK(host[699] == 704);
  CHECK(host[700] == ~0U);
}

TEST_CASE("emulated CUDA: __syncthreads in a loop, and the loop without it goes wrong") {
  constexpr std::uint32_t n = 128, steps = 9;
  std::vector<std::uint32_t> x(n);
  std::iota(x.begin(), x.end(), 1U);
  std::vector<std::uint32_t> expected = x;
  for (std::uint32_t s = 0; s < steps; ++s) {
    const std::vector<std::uint32_t> before = expected;
    for (std::uint32_t t = 0; t < n; ++t) expected[t] = before[t] + before[(t + 1) % n];
  }
  std::set<std::vector<std::uint32_t>> wrong;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const Fresh fresh(seeded(seed, true));
    const DeviceArray<std::uint32_t> right(x), racing(x);
    run(1, n, ring, right.data, steps);
    CHECK(right.host() == expected);
    run(1, n, ring_without_barrier, racing.data, steps);
    CHECK(racing.host() != expected);
    wrong.insert(racing.host());
  }
  CHECK(wrong.size() > 1);
}

TEST_CASE_TEMPLATE("emulated CUDA: shuffles", T, int, unsigned, float, double, std::uint64_t) {
  for (const bool random : {false, true}) {
    const Fresh fresh(seeded(5, random));
    const DeviceArray<T> out(7 * 32);
    run(1, 32, shuffles<T>, out.data);
    const std::vector<T> host = out.host();
    bool right = true;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned sources[7] = {5,
                                   lane ^ 3U,
                                   lane < 28 ? lane + 4 : lane,
                                   lane >= 4 ? lane - 4 : lane,
                                   (lane & ~7U) + 1,
                                   lane % 8 < 5 ? lane + 3 : lane,
                                   lane % 8 >= 3 ? lane - 3 : lane};
      for (unsigned k = 0; k < 7; ++k) right &= host[32 * k + lane] == static_cast<T>(100 + sources[k]);
    }
    CHECK(right);
  }
}

TEST_CASE("emulated CUDA: parts of a warp meet apart, and votes go without lanes that have returned") {
  for (const bool random : {false, true}) {
    const Fresh fresh(seeded(6, random));
    const DeviceArray<std::uint32_t> out(32);
    run(1, 32, halves, out.data);
    std::vector<std::uint32_t> expected(32);
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      const std::uint32_t from = lane ^ 16U, pair = from + (from ^ 1U);
      expected[lane] = from < 16 ? pair : pair * 16;
    }
    CHECK(out.host() == expected);
    run(1, 32, votes, out.data);
    CHECK(out.host()[0] == 0xAAAAAU);
    CHECK(out.host()[1] == 8 + 2);
    run(1, 64, leave_early, out.data);
    CHECK(out.host()[1] == 2);
  }
}

TEST_CASE("emulated CUDA: sums of warps and of blocks") {
  for (const bool random : {false, true}) {
    const Fresh fresh(seeded(7, random));
    std::vector<float> x(8 * 100);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) - 50;  // sums are exact
    const DeviceArray<float> device(x), sums(8), out(2);
    run(2, 128, sum_warps, device.data, sums.data, 100U);
    std::vector<float> expected;
    for (auto row = x.begin(); row != x.end(); row += 100) expected.push_back(std::accumulate(row, row + 100, 0.0F));
    CHECK(sums.host() == expected);
    const std::vector<float> all{std::accumulate(x.begin(), x.end(), 0.0F), 50};
    run(1, 128, reduce_block<128>, device.data, out.data, 800U);
    CHECK(out.host() == all);
    run(1, 1024, reduce_block<1024>, device.data, out.data, 800U);
    CHECK(out.host() == all);
    run(1, 40, reduce_block<40>, device.data, out.data, 800U);
    CHECK(out.host() == all);
  }
}

TEST_CASE("emulated CUDA: storage of a block's reduction used again without a barrier is overwritten") {
  std::set<std::vector<float>> results;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const Fresh fresh(seeded(seed, true));
    const DeviceArray<float> out(2);
    run(1, 128, reduce_block_twice, out.data);
    results.insert(out.host());
  }
  CHECK(results.count({128, 256}) == 1);  // now and then it works by luck
  CHECK(results.size() > 2);
}

TEST_CASE("emulated CUDA: the last block adds what all left, whatever the order of blocks") {
  std::vector<float> x(50 * 64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17);
  const float expected = std::accumulate(x.begin(), x.end(), 0.0F);
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Fresh fresh(seeded(seed, seed % 2 == 0));
    const DeviceArray<float> device(x), partial(50), sum(1);
    const DeviceArray<unsigned> finished(std::vector<unsigned>{0});
    for (int again = 0; again < 2; ++again) {  // the second time with the counter that the first left
      run(50, 64, last_block_adds, device.data, partial.data, sum.data, finished.data);
      CHECK(sum.host()[0] == expected);
      CHECK(finished.host()[0] == 0);
    }
    const DeviceArray<std::uint32_t> next(std::vector<std::uint32_t>{0}), order(50);
    run(50, 1, block_order, next.data, order.data);
    std::vector<std::uint32_t> blocks = order.host();
    orders.insert(blocks);
    std::sort(blocks.begin(), blocks.end());
    for (std::uint32_t b = 0; b < 50; ++b) CHECK(blocks[b] == b);
  }
  CHECK(orders.size() == 5);
}

#if defined(__clang__) && !defined(EMULATED_ASAN)
TEST_CASE("emulated CUDA: blocks find no zeros in shared memory") {
  const Fresh fresh;
  const DeviceArray<std::uint32_t> out(3);
  run(3, 1, shared_before_stored, out.data);
  CHECK(out.host() == std::vector<std::uint32_t>(3, ~0U));
}
#endif

TEST_CASE("emulated CUDA: kernels without meaning abort with a sentence") {
  const auto words = [](void (*kernel)()) {
    return last_words([&] {
      emulated::reset();
      run({2, 3, 1}, 64, kernel);
    });
  };
  CHECK(holds(words(shuffle_of_half), "a shuffle names lanes 0x00010000, which have returned or do not exist"));
  CHECK(holds(words(shuffle_outside_mask), "a thread is not in its own mask of a shuffle: thread (8, 0, 0) of block"));
  CHECK(holds(words(shuffle_from_outside), "a shuffle takes from a lane that its mask does not name"));
  CHECK(holds(words(different_meetings), "name different masks or operations"));
  CHECK(holds(words(trap), "__trap: thread (5, 0, 0) of block"));
  const std::string stuck = words(barrier_against_shuffle);
  CHECK(holds(stuck, "deadlock in block ("));
  CHECK(holds(stuck, "of a kernel void (*)()"));
  CHECK(holds(stuck, "0x00000008 are at __syncthreads"));
  CHECK(holds(stuck, "lane 0 waits for 0xffffffff in a shuffle"));
  // A reduction that was compiled for blocks of another size.
  CHECK(holds(last_words([] {
                emulated::reset();
                float* p = nullptr;
                cudaMalloc(&p, 8);
                run(1, 64, reduce_block<128>, p, p, 0U);
              }),
              "cub::BlockReduce is compiled for another number of threads"));
}

namespace {
void some_wait(unsigned count) {
  if (threadIdx.x < count) cudaGridDependencySynchronize();
}
}  // namespace

TEST_CASE("emulated CUDA: of a kernel that may begin early, every thread waits for the one before") {
  const auto words = [](unsigned waiting, int early) {
    return last_words([&] {
      emulated::reset();
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = early;
      cudaLaunchConfig_t config = shape(2, 64);
      config.attrs = &attribute;
      config.numAttrs = 1;
      cudaLaunchKernelEx(&config, some_wait, waiting);
      cudaDeviceSynchronize();
    });
  };
  CHECK(words(64, 1).empty());
  CHECK(words(0, 0).empty());
  CHECK(holds(words(63, 1), "a kernel that may begin early: 1 threads of block ("));
  CHECK(holds(words(0, 1), "64 threads of block ("));

  emulated::reset();
  cudaLaunchAttribute other{};
  other.id = static_cast<cudaLaunchAttributeID>(1);
  cudaLaunchConfig_t config = shape(2, 64);
  config.attrs = &other;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, some_wait, 0U) == cudaErrorInvalidValue);
}

#if defined(EMULATED_ASAN)
TEST_CASE("emulated CUDA: the sanitizer sees kernels leave their memory") {
  const auto words = [](std::uint32_t at) {
    return last_words([&] {
      emulated::reset();
      std::uint32_t *from = nullptr, *to = nullptr;
      cudaMalloc(&from, 40);
      cudaMalloc(&to, 4);
      run(1, 1, read, from, at, to);
    });
  };
  CHECK(words(9).empty());
  CHECK(holds(words(10), "heap-buffer-overflow"));
  const auto shared = [](std::uint32_t at) {
    return last_words([&] {
      emulated::reset();
      std::uint32_t* to = nullptr;
      cudaMalloc(&to, 32);
      run(1, 8, read_shared, at, to);
    });
  };
  CHECK(shared(0).empty());
  const std::string left = shared(1);
  CHECK((holds(left, "global-buffer-overflow") || holds(left, "out of bounds")));  // who sees it first
  CHECK(holds(last_words([] {
                emulated::reset();
                std::uint32_t *from = nullptr, *to = nullptr;
                cudaMalloc(&from, 40);
                cudaMalloc(&to, 4);
                cudaFree(from);
                run(1, 1, read, from, 0U, to);
              }),
              "heap-use-after-free"));
}
#endif

// Arithmetic and cuBLAS

TEST_CASE("emulated CUDA: atomics and bits") {
  unsigned u = 5;
  CHECK(atomicInc(&u, 6) == 5);
  CHECK(atomicInc(&u, 6) == 6);
  CHECK(u == 0);
  float f = 1;
  CHECK(atomicAdd(&f, 2.5F) == 1);
  CHECK(f == 3.5F);
  int i = -3;
  CHECK(atomicMax(&i, 4) == -3);
  CHECK(atomicMin(&i, 5) == 4);
  CHECK(atomicExch(&i, 9) == 4);
  CHECK(atomicCAS(&i, 8, 1) == 9);
  CHECK(atomicCAS(&i, 9, 1) == 9);
  CHECK(atomicSub(&i, 3) == 1);
  CHECK(i == -2);
  CHECK(__float_as_uint(-2.0F) == 0xC0000000U);
  CHECK(__uint_as_float(0x3F800000U) == 1.0F);
  CHECK(__byte_perm(0x33221100U, 0x77665544U, 0x7531U) == 0x77553311U);
  CHECK(__byte_perm(0x00008000U, 0, 0x4449U) == 0x000000FFU);
  CHECK(__funnelshift_r(0xAABBCCDDU, 0x11223344U, 8) == 0x44AABBCCU);
  CHECK(__clz(0) == 32);
  CHECK(__clz(1) == 31);
  CHECK(__ffs(8) == 4);
  CHECK(__popc(0xF0U) == 4);
  CHECK(__expf(0.0F) == 1.0F);
  CHECK(rsqrtf(4.0F) == 0.5F);
  CHECK(__float2int_rn(2.5F) == 2);
  CHECK(max(3U, 2U) == 3U);
  CHECK(min(-1.0F, 2.0F) == -1.0F);
}

namespace {

std::uint16_t half_bits(int v) {  // -8 to 8, exact
  if (v == 0) return 0;
  const auto magnitude = static_cast<unsigned>(v < 0 ? -v : v);
  const auto power = static_cast<unsigned>(31 - __clz(static_cast<int>(magnitude)));
  return static_cast<std::uint16_t>((v < 0 ? 0x8000U : 0U) | (power + 15) << 10U | (magnitude << (10 - power) & 1023U));
}
std::uint16_t bf16_bits(int v) {
  return static_cast<std::uint16_t>(__float_as_uint(static_cast<float>(v)) >> 16U);
}

}  // namespace

TEST_CASE("emulated CUDA: cuBLAS multiplies, of every type and transposition, in its stream") {
  const Fresh fresh(seeded(8));
  const StreamOwner s;
  cublasHandle_t blas = nullptr;
  REQUIRE(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetStream(blas, s.stream) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetMathMode(blas, CUBLAS_PEDANTIC_MATH) == CUBLAS_STATUS_SUCCESS);
  constexpr int m = 37, n = 5, k = 21, lda = 40, ldb = 23, ldc = 39;
  const auto value = [](int matrix, int row, int column) { return (row * 7 + column * 3 + matrix) % 17 - 8; };
  for (const cudaDataType type : {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const float beta : {0.0F, 2.0F}) {
          CAPTURE(type);
          CAPTURE(ta);
          CAPTURE(tb);
          CAPTURE(beta);
          const auto stored = [&](int matrix, int stride, int columns, int rows) {
            std::vector<float> floats(static_cast<std::size_t>(stride * columns),
                                      NAN);  // between columns: not a number
            std::vector<std::uint16_t> halves(floats.size(), 0x7FFF);
            for (int c = 0; c < columns; ++c) {
              for (int r = 0; r < rows; ++r) {
                const int v = value(matrix, r, c);
                const auto i = static_cast<std::size_t>(c * stride + r);
                floats[i] = static_cast<float>(v);
                halves[i] = type == CUDA_R_16F ? half_bits(v) : bf16_bits(v);
              }
            }
            std::vector<std::byte> bytes(floats.size() * (type == CUDA_R_32F ? 4 : 2));
            std::memcpy(bytes.data(), type == CUDA_R_32F ? static_cast<void*>(floats.data()) : halves.data(),
                        bytes.size());
            return bytes;
          };
          const DeviceArray<std::byte> a(stored(1, lda, ta ? m : k, ta ? k : m));
          const DeviceArray<std::byte> b(stored(2, ldb, tb ? k : n, tb ? n : k));
          const DeviceArray<float> c(std::vector<float>(ldc * n, beta == 0 ? NAN : 3));  // beta 0: C is not read
          const float alpha = 0.5F;
          const auto op_a = ta ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
          if (type == CUDA_R_32F) {
            REQUIRE(cublasSgemm(blas, op_a, op_b, m, n, k, &alpha, reinterpret_cast<float*>(a.data), lda,
                                reinterpret_cast<float*>(b.data), ldb, &beta, c.data, ldc) == CUBLAS_STATUS_SUCCESS);
          } else {
            REQUIRE(cublasGemmEx(blas, op_a, op_b, m, n, k, &alpha, a.data, type, lda, b.data, type, ldb, &beta, c.data,
                                 CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
          }
          OK(cudaStreamSynchronize(s.stream));
          const std::vector<float> host = c.host();
          bool right = true;
          for (int j = 0; j < n; ++j) {
            for (int i = 0; i < m; ++i) {
              int sum = 0;
              for (int l = 0; l < k; ++l) {
                sum += value(1, ta ? l : i, ta ? i : l) * value(2, tb ? j : l, tb ? l : j);
              }
              const float expected = 0.5F * static_cast<float>(sum) + (beta == 0 ? 0 : beta * 3);
              right &= host[static_cast<std::size_t>(j * ldc + i)] == expected;
            }
            const float between = host[static_cast<std::size_t>(j * ldc + m)];
            right &= beta == 0 ? std::isnan(between) : between == 3;
          }
          CHECK(right);
        }
      }
    }
  }
  const float one = 1;
  const DeviceArray<float> x(16);
  const auto square = [&](int size, int stride) {
    return cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one, x.data, stride, x.data, stride, &one,
                       x.data, stride);
  };
  CHECK(square(4, 3) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(square(0, 1) == CUBLAS_STATUS_SUCCESS);
  emulated::fail("cublasSgemm", 1, cudaErrorLaunchFailure);
  CHECK(square(4, 4) == CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK(std::string(cublasGetStatusName(CUBLAS_STATUS_EXECUTION_FAILED)) == "CUBLAS_STATUS_EXECUTION_FAILED");
  CHECK(holds(last_words([&] { square(5, 5); }), "cublasSgemm: the 100 bytes of A are not all in device memory"));
  REQUIRE(cublasDestroy(blas) == CUBLAS_STATUS_SUCCESS);
}
