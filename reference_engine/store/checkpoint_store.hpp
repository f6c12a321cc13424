/// @file
/// Routed experts in the files of a checkpoint.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "store/cached_store.hpp"

namespace ferry::engine {

/// A checkpoint's own files as the tier below the device, for models that are larger than host memory and were not
/// packed. Low precision is made anew whenever an expert is read: a store file (DiskStore) has it ready, and checksums.
class CheckpointStore final : public CachedStore {
 public:
  /// `name`: of the model, for reports. Throws InputError for a missing or misshapen tensor.
  CheckpointStore(std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config, std::string name,
                  Quantizer quantizer, std::uint64_t host_bytes);

  [[nodiscard]] const ExpertLayout& layout() const override { return reader_.layout(); }
  [[nodiscard]] std::vector<ExpertLayout> layouts() const override { return reader_.layouts(); }
  void add(Precision p) override;

 private:
  [[nodiscard]] const ExpertNumbers& numbers() const override { return numbers_; }
  [[nodiscard]] std::uint64_t bytes_of(Variant v) const override {
    return reader_.layout(v.id.layer).bytes(v.precision);
  }
  void read(Variant v, BlockMemory& to) const override;
  [[nodiscard]] StoreReads source() const override;

  std::shared_ptr<const Checkpoint> checkpoint_;
  ExpertReader reader_;
  ExpertPacker packer_;
  ExpertNumbers numbers_;
  std::string name_;
};

}  // namespace ferry::engine
