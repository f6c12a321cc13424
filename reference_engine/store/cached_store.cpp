#include "store/cached_store.hpp"

#include <algorithm>
#include <utility>

#include "support/clock.hpp"

namespace ferry::engine {
namespace {

std::uint64_t key(Variant v) {
  return std::uint64_t{v.id.layer} << 32U | std::uint64_t{v.id.expert} << 8U | static_cast<unsigned>(v.precision);
}

}  // namespace

HeldBytes CachedStore::bytes(Variant v) const {
  if ((precisions_ >> static_cast<unsigned>(v.precision) & 1U) == 0) return {};
  std::shared_ptr<const Block> block = cached(v);
  if (!block) {
    const std::lock_guard lock(reading_);
    block = cached(v);  // another thread may have brought it meanwhile
    if (!block) {
      auto fresh = std::make_unique<Block>(Block{v, make_room(bytes_of(v))});
      read(v, fresh->memory);
      block = std::shared_ptr<const Block>(fresh.release(), [spare = spare_](Block* last) {
        const std::unique_ptr<Block> own(last);
        const std::lock_guard keep(spare->mutex);
        spare->memory = std::move(own->memory);
      });
      const std::lock_guard cache(caching_);
      blocks_.push_front(block);
      where_[key(v)] = blocks_.begin();
      held_bytes_ += block->memory.size();
    }
  }
  const View<const std::byte> view{block->memory.data(), static_cast<std::uint32_t>(block->memory.size())};
  return {view, std::move(block)};
}

std::shared_ptr<const CachedStore::Block> CachedStore::cached(Variant v) const {
  const std::lock_guard lock(caching_);
  const auto found = where_.find(key(v));
  if (found == where_.end()) return nullptr;
  blocks_.splice(blocks_.begin(), blocks_, found->second);
  ++reads_.hits;
  return *found->second;
}

BlockMemory CachedStore::make_room(std::uint64_t bytes) const {
  const std::lock_guard lock(caching_);
  while (!blocks_.empty() && held_bytes_ + bytes > host_bytes_) {
    where_.erase(key(blocks_.back()->what));
    held_bytes_ -= blocks_.back()->memory.size();
    blocks_.pop_back();
  }
  const std::lock_guard keep(spare_->mutex);
  return spare_->memory.size() == bytes ? std::exchange(spare_->memory, {}) : BlockMemory(bytes);
}

void CachedStore::count_read(std::uint64_t bytes) const {
  const std::lock_guard lock(caching_);
  ++reads_.reads;
  reads_.bytes += bytes;
}

void CachedStore::count_retry() const {
  const std::lock_guard lock(caching_);
  ++reads_.retries;
}

double CachedStore::read_bytes_per_s() const {
  if (added_bytes() <= host_bytes_) return 0;
  const std::lock_guard lock(reading_);
  if (bytes_per_s_ < 0) {  // a few experts of the largest precision, past the cache
    Precision p = Precision::full;
    while ((precisions_ >> static_cast<unsigned>(p) & 1U) == 0) p = static_cast<Precision>(static_cast<int>(p) - 1);
    BlockMemory memory(bytes_of({{}, p}));
    const std::uint64_t blocks =
        std::clamp<std::uint64_t>((64U << 20U) / memory.size(), 1, std::min(8U, numbers().of_layer(0)));
    const Nanoseconds begin = now_ns();
    for (std::uint64_t e = 0; e < blocks; ++e) read({{0, static_cast<std::uint16_t>(e)}, p}, memory);
    bytes_per_s_ = static_cast<double>(blocks * memory.size()) * 1e9 /
                   static_cast<double>(std::max<Nanoseconds>(1, now_ns() - begin));
  }
  return bytes_per_s_;
}

StoreReads CachedStore::reads() const {
  const std::lock_guard lock(caching_);
  StoreReads r = source();
  r.host_bytes = host_bytes_;
  r.reads = reads_.reads;
  r.bytes = reads_.bytes;
  r.hits = reads_.hits;
  r.retries = reads_.retries;
  return r;
}

template <class F>
void CachedStore::for_each_added(F each) const {
  const ExpertNumbers& all = numbers();
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((precisions_ >> p & 1U) == 0) continue;
    for (std::uint64_t n = 0; n < all.all(); ++n) {
      if (!each(Variant{all.id(n), static_cast<Precision>(p)})) return;
    }
  }
}

std::uint64_t CachedStore::added_bytes() const {
  std::uint64_t bytes = 0;
  for_each_added([&](Variant v) {
    bytes += bytes_of(v);
    return true;
  });
  return bytes;
}

void CachedStore::preload(const std::function<bool(std::uint64_t, std::uint64_t)>& progress) const {
  const std::uint64_t all = added_bytes();
  if (all > host_bytes_) return;
  std::uint64_t done = 0;
  for_each_added([&](Variant v) {
    if (!progress(done, all)) return false;
    done += bytes(v).view.size;
    return true;
  });
  progress(done, all);
}

}  // namespace ferry::engine
