/// @file
/// Routed experts that are read when somebody asks for them, and host memory as a cache over them.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "store/block_file.hpp"
#include "store/expert_store.hpp"

namespace ferry::engine {

/// A tier below the device that is larger than host memory, which is a cache over it: the least recently used leaves first.
class CachedStore : public ExpertStore {
 public:
  [[nodiscard]] std::uint8_t precisions() const override { return precisions_; }
  [[nodiscard]] HeldBytes bytes(Variant v) const override;
  [[nodiscard]] double read_bytes_per_s() const override;
  [[nodiscard]] StoreReads reads() const override;

  /// Every expert at the precisions that were added.
  [[nodiscard]] std::uint64_t added_bytes() const;
  void set_host_bytes(std::uint64_t bytes) { host_bytes_ = bytes; }
  /// Reads all of that into host memory, if it fits. `progress(done, all)`, in bytes: false stops.
  void preload(const std::function<bool(std::uint64_t, std::uint64_t)>& progress) const;

 protected:
  /// `host_bytes`: of the cache, which holds what was read last even if that is larger.
  explicit CachedStore(std::uint64_t host_bytes) : host_bytes_(host_bytes) {}

  [[nodiscard]] virtual const ExpertNumbers& numbers() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_of(Variant v) const = 0;
  /// Fills `to`, of `bytes_of(v)`. One thread at a time. Throws InputError if that cannot be.
  virtual void read(Variant v, BlockMemory& to) const = 0;
  /// Where it comes from, for reports.
  [[nodiscard]] virtual StoreReads source() const = 0;

  void set_precisions(std::uint8_t precisions) { precisions_ = precisions; }
  // For `read`.
  void count_read(std::uint64_t bytes) const;
  void count_retry() const;

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
  /// Calls `each(variant)` for all that was added, until it returns false.
  template <class F>
  void for_each_added(F each) const;

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
