#include "cuda/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "support/errors.hpp"

namespace ferry::engine::cuda {

const char* name(Use use) {
  const char* names[uses] = {"the weights that every token needs", "the experts' slots", "keys and values",
                             "activations"};
  return names[static_cast<std::size_t>(use)];
}

std::uint64_t margin_bytes(std::uint64_t total) {
  return std::min(std::uint64_t{256} << 20U, total / 32);
}

void refuse(std::uint64_t bytes, Use use, const Account& account) {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const std::uint64_t experts = account.bytes[static_cast<std::size_t>(Use::experts)];
  const std::uint64_t slots = use == Use::experts ? bytes : experts;
  const std::uint64_t margin = margin_bytes(total);
  const std::uint64_t lacking = bytes > free ? bytes - free + margin : margin;  // free memory may be fragmented
  const std::uint64_t fits = slots > lacking ? (slots - lacking) / 64 * 64 : 0;
  throw InputError(fmt::format("{} bytes for {} do not fit the device: {} of its {} bytes are free; {}", bytes,
                               name(use), free, total,
                               fits > 0 ? fmt::format("--budget {} would leave room", fits)
                                        : std::string("no --budget would leave room for the rest")));
}

DeviceBlock::DeviceBlock(std::uint64_t bytes, Use use, std::shared_ptr<Account> account) {
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, bytes);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    refuse(bytes, use, *account);
  }
  check(error, "cudaMalloc");
  account->add(use, bytes);
  memory_ = {static_cast<std::byte*>(p), FreeOnDevice{bytes, use, std::move(account)}};
}

void FreeOnDevice::operator()(std::byte* p) const {
  static_cast<void>(cudaFree(p));
  account->remove(use, bytes);
}

HostBlock::HostBlock(std::uint64_t bytes) : bytes_(bytes) {
  void* p = nullptr;
  const cudaError_t error = cudaHostAlloc(&p, bytes, cudaHostAllocMapped);
  if (error == cudaErrorMemoryAllocation) {
    throw InputError(fmt::format("out of host memory: {} bytes that are page-locked cannot be had", bytes));
  }
  check(error, "cudaHostAlloc");
  memory_.reset(static_cast<std::byte*>(p));
  check(cudaHostGetDevicePointer(&mapped_, p, 0), "cudaHostGetDevicePointer");
}

}  // namespace ferry::engine::cuda
