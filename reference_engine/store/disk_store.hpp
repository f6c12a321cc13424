/// @file
/// Routed experts in a store file.
#pragma once
#include <memory>
#include <string>

#include "store/cached_store.hpp"
#include "store/store_file.hpp"

namespace ferry::engine {

/// A store file as the tier below the device.
///
/// Every read is held against its checksum. What fails, comes short or differs is read again, three times in all; then
/// the error names file, expert and reason. Nothing else is ever given out.
class DiskStore final : public CachedStore {
 public:
  /// `name`: of the file, for messages. Throws InputError as read_store does.
  DiskStore(std::unique_ptr<BlockFile> file, std::string name, std::uint64_t host_bytes);

  [[nodiscard]] const StoreFacts& facts() const { return index_.facts; }
  [[nodiscard]] const ExpertLayout& layout() const override { return facts().layout; }
  [[nodiscard]] std::vector<ExpertLayout> layouts() const override { return facts().layouts(); }
  void add(Precision p) override;

 private:
  [[nodiscard]] const ExpertNumbers& numbers() const override { return facts().numbers; }
  [[nodiscard]] std::uint64_t bytes_of(Variant v) const override {
    return facts().layout_of(v.id.layer).bytes(v.precision);
  }
  void read(Variant v, BlockMemory& to) const override;
  [[nodiscard]] StoreReads source() const override;
  [[nodiscard]] std::string read_once(Variant v, BlockMemory& to) const;

  std::unique_ptr<BlockFile> file_;
  std::string name_;
  StoreIndex index_;
};

}  // namespace ferry::engine
