/// @file
/// Routed experts as bytes, and their computation from bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/allotment.hpp"
#include "host_math.hpp"
#include "model_config.hpp"

namespace ferry::engine {

/// How one expert lies in memory, as it crosses a link and sits in a slot:
/// gate [width, hidden], up [width, hidden], down [hidden, width], one after another, in the checkpoint's type.
struct ExpertLayout {
  std::uint32_t hidden = 0, width = 0;
  DType dtype = DType::bf16;

  [[nodiscard]] std::uint64_t bytes() const {
    return std::uint64_t{3} * hidden * width * (dtype == DType::f32 ? 4 : 2);
  }
};

/// Every routed expert of a model, one contiguous block each: the tier below the device.
class ExpertStore {
 public:
  ExpertStore() = default;
  /// Copies the experts out of a checkpoint. Throws InputError for a missing or misshapen tensor.
  ExpertStore(const Checkpoint& checkpoint, const ModelConfig& config);

  [[nodiscard]] const ExpertLayout& layout() const { return layout_; }
  [[nodiscard]] View<const std::byte> bytes(Variant v) const {
    return {bytes_.data() + (std::size_t{v.id.layer} * experts_ + v.id.expert) * layout_.bytes(),
            static_cast<std::uint32_t>(layout_.bytes())};
  }

 private:
  ExpertLayout layout_;
  std::uint32_t experts_ = 0;
  std::vector<std::byte> bytes_;
};

/// Runs single experts. Owns the scratch memory for it.
class ExpertKernel {
 public:
  explicit ExpertKernel(const ExpertLayout& layout) : layout_(layout) {}

  /// y = down (silu(gate x) * up x). x, y: [rows, hidden]; `expert` is one block as ExpertLayout describes.
  void run(const std::byte* expert, const Matrix& x, Matrix& y);

 private:
  ExpertLayout layout_;
  Matrix weights_gate_, weights_up_, weights_down_, gate_, up_;
};

}  // namespace ferry::engine
