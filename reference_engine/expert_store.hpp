/// @file
/// Routed experts as bytes: the tier below the device.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "expert.hpp"
#include "model_config.hpp"

namespace ferry::engine {

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

}  // namespace ferry::engine
