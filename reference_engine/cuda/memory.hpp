/// @file
/// Memory of the device, and page-locked memory of the host, with an account of it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ferry/link/cuda_stream.hpp"

namespace ferry::engine::cuda {

/// Throws LinkError with the call, and what CUDA says of it.
inline void check(cudaError_t error, const char* call) {
  ferry::part::check_cuda(error, call);
}

/// What device memory is used for.
enum class Use : std::uint8_t { weights, experts, cache, activations };
inline constexpr std::size_t uses = 4;
const char* name(Use use);

/// Bytes asked of the device, by use: now, and the most so far.
struct Account {
  std::uint64_t bytes[uses] = {}, most[uses] = {};

  void add(Use use, std::uint64_t count) {
    const auto u = static_cast<std::size_t>(use);
    bytes[u] += count;
    most[u] = most[u] < bytes[u] ? bytes[u] : most[u];
  }
  void remove(Use use, std::uint64_t count) { bytes[static_cast<std::size_t>(use)] -= count; }
};

/// What slots leave free of a device's memory: kernels and cuBLAS are loaded when they are first used, and keys and
/// values come later.
std::uint64_t margin_bytes(std::uint64_t total);

/// Throws InputError because so many bytes are not free on the device: it says what was asked for, what is free, and which
/// --budget would leave room.
[[noreturn]] void refuse(std::uint64_t bytes, Use use, const Account& account);

/// Gives a block back.
struct FreeOnDevice {
  std::uint64_t bytes = 0;
  Use use = Use::weights;
  std::shared_ptr<Account> account;
  void operator()(std::byte* p) const;
};

/// A block on the device, as long as it lives.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  /// Throws InputError as `refuse` does.
  DeviceBlock(std::uint64_t bytes, Use use, std::shared_ptr<Account> account);

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  [[nodiscard]] std::uint64_t bytes() const { return memory_.get_deleter().bytes; }

 private:
  std::unique_ptr<std::byte, FreeOnDevice> memory_;
};

/// Page-locked memory of the host that the device can read, too.
class HostBlock {
 public:
  HostBlock() = default;
  explicit HostBlock(std::uint64_t bytes);

  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  /// The same bytes as the device sees them.
  template <class T>
  [[nodiscard]] T* on_device() const {
    return static_cast<T*>(mapped_);
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { static_cast<void>(cudaFreeHost(p)); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  void* mapped_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// An event that goes with its owner.
class Event {
 public:
  /// `flags`: cudaEventDisableTiming for one that is only waited for; a time costs the device a stop.
  explicit Event(unsigned flags = cudaEventDefault) {
    check(cudaEventCreateWithFlags(&handle_, flags), "cudaEventCreateWithFlags");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { static_cast<void>(cudaEventDestroy(handle_)); }
  operator cudaEvent_t() const { return handle_; }
  void record(cudaStream_t stream) const { check(cudaEventRecord(handle_, stream), "cudaEventRecord"); }
  [[nodiscard]] bool done() const {
    const cudaError_t state = cudaEventQuery(handle_);
    if (ferry::part::not_ready(state)) return false;
    check(state, "cudaEventQuery");
    return true;
  }
  /// From `begin` to this one, which must both have happened.
  [[nodiscard]] std::int64_t ns_since(const Event& begin) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin.handle_, handle_), "cudaEventElapsedTime");
    return static_cast<std::int64_t>(double{ms} * 1e6);
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace ferry::engine::cuda
