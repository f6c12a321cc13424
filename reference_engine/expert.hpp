/// @file
/// Routed experts as bytes, and their computation from bytes.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ferry/codec/packed.hpp"
#include "ferry/model.hpp"
#include "host_math.hpp"
#include "model_config.hpp"
#include "safetensors.hpp"

namespace ferry::engine {

/// How one expert lies in memory, as it crosses a link and sits in a slot:
/// gate [width, hidden], up [width, hidden], down [hidden, width], one after another.
///
/// At `full` in the checkpoint's type; at int8, int4 and int2 each as `packed` says, rounded to the nearest.
struct ExpertLayout {
  std::uint32_t hidden = 0, width = 0;
  DType dtype = DType::bf16;  ///< at `full`

  /// 0 for `skip`.
  [[nodiscard]] std::uint64_t bytes(Precision p = Precision::full) const {
    if (p == Precision::skip) return 0;
    if (p == Precision::full) return std::uint64_t{3} * hidden * width * (dtype == DType::f32 ? 4 : 2);
    return packed(0, p).bytes() + packed(1, p).bytes() + packed(2, p).bytes();
  }
  /// Matrix 0, 1 or 2, gate, up or down, at int8, int4 or int2.
  [[nodiscard]] PackedLayout packed(int part, Precision p) const {
    return {part == 2 ? hidden : width, part == 2 ? width : hidden, code_bits(p)};
  }
};

/// Every routed expert of a model, one contiguous block each and precision: the tier below the device.
/// Set up by one thread; then any number may read.
class ExpertStore {
 public:
  ExpertStore() = default;
  /// Copies the experts out of a checkpoint, at full precision. Throws InputError for a missing or misshapen tensor.
  ExpertStore(const Checkpoint& checkpoint, const ModelConfig& config);

  /// Stores every expert at `p` as well, made from the full weights: the same bytes each time.
  /// What is stored already, and `skip`, which has no bytes, change nothing.
  /// Throws InputError, naming the tensor, for a NaN or an infinity, and then changes nothing.
  void add(Precision p);

  /// Bit `1 << p` for every Precision p that is stored.
  [[nodiscard]] std::uint8_t precisions() const;
  [[nodiscard]] const ExpertLayout& layout() const { return layout_; }
  /// Empty at a precision that is not stored.
  [[nodiscard]] View<const std::byte> bytes(Variant v) const {
    const std::vector<std::byte>& all = bytes_[static_cast<unsigned>(v.precision)];
    if (all.empty()) return {};
    const std::uint64_t each = layout_.bytes(v.precision);
    return {all.data() + (std::size_t{v.id.layer} * experts_ + v.id.expert) * each, static_cast<std::uint32_t>(each)};
  }

 private:
  ExpertLayout layout_;
  Architecture architecture_{};
  std::uint32_t experts_ = 0;                                  // of a layer
  std::array<std::vector<std::byte>, precision_count> bytes_;  // by Precision
};

/// Runs single experts. Owns the scratch memory for it.
class ExpertKernel {
 public:
  explicit ExpertKernel(const ExpertLayout& layout) : layout_(layout) {}

  /// y = down (silu(gate x) * up x). x, y: [rows, hidden]; `expert` is one block as ExpertLayout describes, at `p`,
  /// which is not `skip`.
  void run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y);

 private:
  ExpertLayout layout_;
  Matrix weights_gate_, weights_up_, weights_down_, gate_, up_;
};

}  // namespace ferry::engine
