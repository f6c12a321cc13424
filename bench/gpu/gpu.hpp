/// @file
/// What the parts of the GPU's benchmark share: its ceilings, how time is taken, how results are shown.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels.hpp"
#include "cuda/workspace.hpp"
#include "math/expert.hpp"
#include "support/json.hpp"

namespace ferry::bench {

using engine::Json;

struct GpuArguments {
  bool quick = false;
  std::vector<std::string> only, stacks;
  std::optional<std::uint32_t> layers;
  std::uint32_t tokens = 24;
  std::string budget = "25%", shape = "both", json;
};

/// The same number, measured several times.
struct Samples {
  std::vector<double> all;

  void add(double value) { all.push_back(value); }
  [[nodiscard]] double median() const;
  [[nodiscard]] double least() const;
  [[nodiscard]] double most() const;
};

/// A measured number beside its ceiling, sample by sample of the same rounds.
struct Comparison {
  std::string what;
  const char* unit = "";
  double scale = 1;  ///< from the stored number to the unit
  Samples measured, ceiling;
  std::string ceiling_is;
  std::optional<double> goal;  ///< of the ratio
  bool rate = true;            ///< more is better; otherwise a time

  /// Measured over ceiling: the median of the rounds' own ratios.
  [[nodiscard]] double ratio() const;
  [[nodiscard]] bool reached() const { return rate ? ratio() >= *goal : ratio() <= *goal; }
};

/// Prints a heading; lines of a table follow it.
void print_heading(const std::string& title);
/// Prints a line of the table. Returns it with every sample.
Json print(const Comparison& c);
Json to_json(const Samples& s);

/// The device, a stream and cuBLAS on it, and what its memory can do.
class Gpu {
 public:
  explicit Gpu(bool quick);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] cudaStream_t stream() const { return context.stream; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t l2_bytes() const { return l2_bytes_; }
  [[nodiscard]] static std::uint64_t free_bytes();
  /// Name, versions, sizes.
  [[nodiscard]] Json facts() const;

  /// A block on the device. Throws InputError if there is no room.
  [[nodiscard]] engine::cuda::DeviceBlock block(std::uint64_t bytes) const;

  /// The device's own time for what `work` puts on the stream. All of it is queued before any of it begins, so it may be some
  /// 500 launches at most. Kernels must have run before, because the driver would otherwise load them within that time.
  double seconds(const std::function<void()>& work) const;

  /// How fast the device reads its memory, in bytes a second: the best of three sums by cuBLAS and three copies on the
  /// device, which read and write.
  [[nodiscard]] double read_bytes_per_s() const;

  engine::cuda::Context context;

 private:
  engine::cuda::StreamOwner stream_;
  engine::cuda::BlasOwner blas_;
  std::string name_;
  std::uint64_t l2_bytes_ = 0;
  std::shared_ptr<engine::cuda::Account> account_ = std::make_shared<engine::cuda::Account>();
  engine::cuda::DeviceBlock swept_, copied_, sum_;
};

/// Blocks of page-locked memory, and the rate of plain copies from them, which is the ceiling for a link.
class PlainCopies {
 public:
  /// Allocates at least two blocks, and so many that the host's caches do not hold them all.
  PlainCopies(const Gpu& gpu, std::uint64_t bytes, std::uint64_t block_bytes);
  /// Copies `bytes` of existing memory in blocks: the rate also depends on which memory it is.
  PlainCopies(const Gpu& gpu, const std::vector<std::pair<const std::byte*, std::size_t>>& memory, std::uint64_t bytes,
              std::uint64_t block_bytes);
  double bytes_per_s();

 private:
  const Gpu& gpu_;
  std::uint64_t block_bytes_;
  engine::cuda::HostBlock own_;
  std::vector<const std::byte*> from_;
  engine::cuda::DeviceBlock to_;
};

/// "4 MiB" and the like, for people.
std::string size_text(std::uint64_t bytes);
/// A line on stderr.
void say_progress(const std::string& what);

/// Makes up the bytes of experts, quickly: weights that are finite and small, and differ by `number`.
class ExpertBytesMaker {
 public:
  explicit ExpertBytesMaker(const engine::ExpertLayout& layout);
  void make(std::uint64_t number, Precision p, std::byte* to) const;

 private:
  engine::ExpertLayout layout_;
  std::vector<std::uint16_t> weights_;  ///< bf16, up to 1/64
};

// The parts. Each returns its JSON.

Json gpu_copy(const Gpu& gpu, const GpuArguments& a);
Json gpu_gates(const Gpu& gpu, const GpuArguments& a);
Json gpu_experts(const Gpu& gpu, const GpuArguments& a);
/// `wrong`: set if a stack that must compute what the resident model computes did not.
Json gpu_decode(const Gpu& gpu, const GpuArguments& a, bool& wrong);

}  // namespace ferry::bench
