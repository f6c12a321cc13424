// The load of policies.hpp on a GPU, with one thread a policy or core: the block is built on the host, copied to the device and
// used there. The digest must be the host's, even if the host runs the first half of the load. Also unpacks stored weights,
// which must be the same floats on both.
// CI only compiles it. To run it: nvcc -std=c++20 -Iinclude -Itests tests/cuda/policies.cu -o policies && ./policies
#include "cuda/policies.hpp"

#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <vector>

#include "ferry/codec/pass_through.hpp"
#include "ferry/codec/round_to_nearest.hpp"

using namespace ferry;
using namespace ferry::test::device;

namespace {

constexpr int skipped = 77;  // CTest's SKIP_RETURN_CODE

void check(cudaError_t error, const char* call, std::size_t bytes = 0,
           std::source_location place = std::source_location::current()) {
  if (error == cudaSuccess) return;
  std::printf("line %u: %s of %zu bytes: %s\n", place.line(), call, bytes, cudaGetErrorString(error));
  std::exit(1);
}

template <class Subject>
__global__ void go_on(Subject* subject, Load* load, std::uint32_t steps) {
  drive(*subject, *load, steps);
}

/// Device memory that starts as a copy of the host's, 64 bytes after the address that cudaMalloc gives.
class OnDevice {
 public:
  OnDevice(const void* from, std::size_t bytes) {
    check(cudaMalloc(&memory_, storage_alignment + bytes), "cudaMalloc", storage_alignment + bytes);
    check(cudaMemcpy(data(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device", bytes);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { check(cudaFree(memory_), "cudaFree"); }

  [[nodiscard]] std::byte* data() const { return memory_ + storage_alignment; }

 private:
  std::byte* memory_ = nullptr;
};

/// The load's digest if the host runs the first `on_host` steps and the device the others.
template <class Parameters>
std::uint64_t digest(const Parameters& parameters, std::uint32_t on_host) {
  using S = Subject<Parameters>;
  const std::size_t bytes = block_bytes(parameters);
  const Block block(bytes, 0);
  S* subject = create(block.data(), parameters);
  Load load;
  drive(*subject, load, on_host);
  if (on_host == load_steps) return load.digest.value();
  const OnDevice there(block.data(), bytes), load_there(&load, sizeof(Load));
  go_on<<<1, 1>>>(reinterpret_cast<S*>(there.data()), reinterpret_cast<Load*>(load_there.data()), load_steps - on_host);
  check(cudaGetLastError(), "launch");
  check(cudaDeviceSynchronize(), "the load");
  check(cudaMemcpy(&load, load_there.data(), sizeof(Load), cudaMemcpyDeviceToHost), "cudaMemcpy from the device",
        sizeof(Load));
  return load.digest.value();
}

template <class Layout>
__global__ void unpack(Layout m, const std::byte* packed, float* weights) {
  unpack_row(m, packed, threadIdx.x, weights + std::size_t{threadIdx.x} * m.columns);
}

/// Whether a stored matrix is the same floats on the device, bit for bit. `codec...`: what `pack` needs beside it.
template <class Layout, class... Codec>
bool same_weights(const Layout& m, const Codec&... codec) {
  std::vector<float> weights(std::size_t{m.rows} * m.columns), here(weights.size()), back(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>((i * 7919) % 1013) / 500.0F - 1.0F;
  for (std::size_t i = 0; i < weights.size(); i += 7) weights[i] *= 0x1p-18F;  // below what f16 is precise to
  std::vector<std::byte> packed(m.bytes());
  if (pack(m, weights.data(), packed.data(), codec...) != no_weight) return false;
  for (std::uint32_t row = 0; row < m.rows; ++row)
    unpack_row(m, packed.data(), row, &here[std::size_t{row} * m.columns]);
  const std::size_t bytes = back.size() * sizeof(float);
  const OnDevice there(packed.data(), packed.size()), out(back.data(), bytes);
  unpack<<<1, m.rows>>>(m, there.data(), reinterpret_cast<float*>(out.data()));
  check(cudaGetLastError(), "launch");
  check(cudaMemcpy(back.data(), out.data(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device", bytes);
  return std::memcmp(here.data(), back.data(), bytes) == 0;
}

}  // namespace

int main() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("skipped, no GPU: %s\n", cudaGetErrorString(error));
    return skipped;
  }
  int different = 0;
  auto compare = [&](const char* name, const auto& parameters) {
    std::printf("%-45s ", name);
    const std::uint64_t host = digest(parameters, load_steps);
    const std::uint64_t device = digest(parameters, 0);
    const std::uint64_t both = digest(parameters, load_steps / 2);
    const bool same = device == host && both == host;
    std::printf("%016llx %s\n", static_cast<unsigned long long>(host), same ? "same" : "DIFFERENT");
    if (!same) ++different;
  };
  for_each_policy(compare);
  for_each_core(compare);
  for (const std::uint32_t bits : {8U, 4U, 2U}) {
    for (const std::uint32_t group : {32U, 64U, 128U}) {
      const bool same = same_weights(PackedLayout{5, 333, bits, group}, RoundToNearest{});
      std::printf("%u bits in groups of %-31u %s\n", bits, group, same ? "same" : "DIFFERENT");
      if (!same) ++different;
    }
  }
  for (const FloatType type : {FloatType::bf16, FloatType::f16, FloatType::f32}) {
    const bool same = same_weights(PassThroughLayout{5, 333, type});
    std::printf("%-51s %s\n",
                type == FloatType::bf16  ? "bf16"
                : type == FloatType::f16 ? "f16"
                                         : "f32",
                same ? "same" : "DIFFERENT");
    if (!same) ++different;
  }
  std::printf("%d differ\n", different);
  return different == 0 ? 0 : 1;
}
