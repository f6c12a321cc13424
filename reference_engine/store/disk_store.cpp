#include "store/disk_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

std::uint64_t key(Variant v) {
  return std::uint64_t{v.id.layer} << 32U | std::uint64_t{v.id.expert} << 8U | static_cast<unsigned>(v.precision);
}

}  // namespace

DiskStore::DiskStore(std::unique_ptr<BlockFile> file, std::string name, std::uint64_t host_bytes)
    : file_(std::move(file)), name_(std::move(name)), index_(read_store(*file_, name_)), host_bytes_(host_bytes) {
  if (facts().has(Precision::full)) precisions_ = 1U << static_cast<unsigned>(Precision::full);
}

void DiskStore::add(Precision p) {
  if (p == Precision::skip) return;
  if (!facts().has(p)) {
    std::string there;
    for (const Precision stored : facts().stored()) there += (there.empty() ? "" : ",") + layout().name(stored);
    throw InputError(fmt::format("{}: has its experts at {} only, and {} is needed: ferry pack --precisions {},{}",
                                 name_, there, layout().name(p), there, layout().name(p)));
  }
  precisions_ = static_cast<std::uint8_t>(precisions_ | 1U << static_cast<unsigned>(p));
}

HeldBytes DiskStore::bytes(Variant v) const {
  if ((precisions_ >> static_cast<unsigned>(v.precision) & 1U) == 0) return {};
  std::shared_ptr<const Block> block = cached(v);
  if (!block) {
    const std::lock_guard lock(reading_);
    block = cached(v);  // another thread may have brought it meanwhile
    if (!block) {
      auto fresh = std::make_unique<Block>(Block{v, make_room(layout().bytes(v.precision))});
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

std::shared_ptr<const DiskStore::Block> DiskStore::cached(Variant v) const {
  const std::lock_guard lock(caching_);
  const auto found = where_.find(key(v));
  if (found == where_.end()) return nullptr;
  blocks_.splice(blocks_.begin(), blocks_, found->second);
  ++reads_.hits;
  return *found->second;
}

BlockMemory DiskStore::make_room(std::uint64_t bytes) const {
  const std::lock_guard lock(caching_);
  while (!blocks_.empty() && held_bytes_ + bytes > host_bytes_) {
    where_.erase(key(blocks_.back()->what));
    held_bytes_ -= blocks_.back()->memory.size();
    blocks_.pop_back();
  }
  const std::lock_guard keep(spare_->mutex);
  return spare_->memory.size() == bytes ? std::exchange(spare_->memory, {}) : BlockMemory(bytes);
}

void DiskStore::read(Variant v, BlockMemory& to) const {
  constexpr int attempts = 3;
  std::string reason;
  for (int i = 0; i < attempts; ++i) {
    if (i > 0) {
      file_->forget(facts().at(v), whole_blocks(to.size()));
      const std::lock_guard lock(caching_);
      ++reads_.retries;
    }
    reason = read_once(v, to);
    if (reason.empty()) return;
  }
  throw InputError(fmt::format("{}: expert {} of layer {} at {}, {} bytes at byte {}: {} (tried {} times)", name_,
                               v.id.expert, v.id.layer, layout().name(v.precision), to.size(), facts().at(v), reason,
                               attempts));
}

std::string DiskStore::read_once(Variant v, BlockMemory& to) const {
  const std::uint64_t at = facts().at(v), bytes = whole_blocks(to.size());
  for (std::uint64_t got = 0; got < bytes;) {
    const std::int64_t n = file_->read(at + got, to.data() + got, bytes - got);
    if (n < 0) return fmt::format("cannot be read: {}", std::strerror(static_cast<int>(-n)));
    const std::uint64_t whole = static_cast<std::uint64_t>(n) / block_alignment * block_alignment;
    if (whole == 0) return fmt::format("the file ends at byte {}", at + got + static_cast<std::uint64_t>(n));
    got += whole;
  }
  {
    const std::lock_guard lock(caching_);
    ++reads_.reads;
    reads_.bytes += bytes;
  }
  return checksum(to.data(), to.size()) == index_.checksums[facts().block(v)] ? "" : "its checksum differs";
}

double DiskStore::read_bytes_per_s() const {
  if (added_bytes() <= host_bytes_) return 0;
  const std::lock_guard lock(reading_);
  if (bytes_per_s_ < 0) {  // a few blocks of the largest precision, past the cache
    Precision p = Precision::full;
    while ((precisions_ >> static_cast<unsigned>(p) & 1U) == 0) p = static_cast<Precision>(static_cast<int>(p) - 1);
    BlockMemory memory(layout().bytes(p));
    const std::uint64_t blocks =
        std::clamp<std::uint64_t>((64U << 20U) / memory.size(), 1, std::min(8U, facts().experts));
    const Nanoseconds begin = now_ns();
    for (std::uint64_t e = 0; e < blocks; ++e) read({{0, static_cast<std::uint16_t>(e)}, p}, memory);
    bytes_per_s_ = static_cast<double>(blocks * memory.size()) * 1e9 /
                   static_cast<double>(std::max<Nanoseconds>(1, now_ns() - begin));
  }
  return bytes_per_s_;
}

StoreReads DiskStore::reads() const {
  const std::lock_guard lock(caching_);
  StoreReads r = reads_;
  r.file = name_;
  r.how = file_->how();
  r.host_bytes = host_bytes_;
  return r;
}

std::uint64_t DiskStore::added_bytes() const {
  std::uint64_t bytes = 0;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((precisions_ >> p & 1U) != 0) bytes += facts().all_experts() * layout().bytes(static_cast<Precision>(p));
  }
  return bytes;
}

void DiskStore::preload(const std::function<bool(std::uint64_t, std::uint64_t)>& progress) const {
  const std::uint64_t all = added_bytes();
  if (all > host_bytes_) return;
  std::uint64_t done = 0;
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((precisions_ >> p & 1U) == 0) continue;
    for (std::uint64_t n = 0; n < facts().all_experts(); ++n) {
      if (!progress(done, all)) return;
      done += bytes({facts().id(n), static_cast<Precision>(p)}).view.size;
    }
  }
  progress(done, all);
}

}  // namespace ferry::engine
