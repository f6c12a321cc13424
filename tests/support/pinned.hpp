/// @file
/// Page-locked host memory, and a device's memory as the device's own work sees it.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace ferry::test {

inline void need(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

/// Bytes that CUDA copies from and to where they are.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes) : bytes_(bytes) {
    void* p = nullptr;
    need(cudaMallocHost(&p, bytes));
    memory_.reset(static_cast<std::byte*>(p));
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  std::byte& operator[](std::size_t i) const { return memory_.get()[i]; }

 private:
  struct Free {
    void operator()(std::byte* p) const { static_cast<void>(cudaFreeHost(p)); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

class Stream {
 public:
  Stream() { need(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { static_cast<void>(cudaStreamDestroy(handle_)); }
  operator cudaStream_t() const { return handle_; }
  void synchronize() const { need(cudaStreamSynchronize(handle_)); }
  /// What the stream's next work would see.
  void read(const Pinned& to, std::size_t at, const std::byte* from, std::size_t bytes) const {
    need(cudaMemcpyAsync(to.data() + at, from, bytes, cudaMemcpyDeviceToHost, handle_));
  }

 private:
  cudaStream_t handle_ = nullptr;
};

}  // namespace ferry::test
