/// @file
/// Routed experts on a disk, and host memory as a cache over it.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "store/store_file.hpp"

namespace ferry::engine {

/// A store file as the tier below the device. What is read goes to a cache in host memory, least recently used out.
///
/// Every read is held against its checksum. What fails, comes short or differs is read again, three times in all; then
/// the error names file, expert and reason. Nothing else is ever given out.
class DiskStore final : public ExpertStore {
 public:
  /// `name`: of the file, for messages. `host_bytes`: of the cache, which holds what was read last even if that is
  /// larger. Throws InputError as read_store does.
  DiskStore(std::unique_ptr<BlockFile> file, std::string name, std::uint64_t host_bytes);

  [[nodiscard]] const StoreFacts& facts() const { return index_.facts; }
  [[nodiscard]] const ExpertLayout& layout() const override { return index_.facts.layout; }
  [[nodiscard]] std::uint8_t precisions() const override { return precisions_; }
  void add(Precision p) override;
  [[nodiscard]] HeldBytes bytes(Variant v) const override;
  [[nodiscard]] double read_bytes_per_s() const override;
  [[nodiscard]] StoreReads reads() const override;

  /// Every expert at the precisions that were added.
  [[nodiscard]] std::uint64_t added_bytes() const;
  void set_host_bytes(std::uint64_t bytes) { host_bytes_ = bytes; }
  /// Reads all of that into host memory, if it fits. `progress(done, all)`, in bytes: false stops.
  void preload(const std::function<bool(std::uint64_t, std::uint64_t)>& progress) const;

 private:
  struct Block {
    Variant what;
    BlockMemory memory;
  };
  /// Memory of the last block that nobody holds any more: fresh memory costs a page fault every 4 KiB.
  struct Spare {
    std::mutex mutex;
    BlockMemory memory;
  };
  using Blocks = std::list<std::shared_ptr<const Block>>;

  [[nodiscard]] std::shared_ptr<const Block> cached(Variant v) const;
  /// Makes room for a block, and finds memory for it.
  [[nodiscard]] BlockMemory make_room(std::uint64_t bytes) const;
  void read(Variant v, BlockMemory& to) const;
  [[nodiscard]] std::string read_once(Variant v, BlockMemory& to) const;

  std::unique_ptr<BlockFile> file_;
  std::string name_;
  StoreIndex index_;
  std::uint8_t precisions_ = 0;
  std::uint64_t host_bytes_;

  // Readers hold `reading_` for long, and `caching_` never: what is in memory is there at once.
  mutable std::mutex reading_, caching_;
  mutable Blocks blocks_;  // most recently used first
  mutable std::unordered_map<std::uint64_t, Blocks::iterator> where_;
  mutable std::uint64_t held_bytes_ = 0;
  std::shared_ptr<Spare> spare_ = std::make_shared<Spare>();  // lives as long as any block
  mutable StoreReads reads_;
  mutable double bytes_per_s_ = -1;
};

}  // namespace ferry::engine
