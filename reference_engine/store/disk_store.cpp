#include "store/disk_store.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "support/errors.hpp"

namespace ferry::engine {

DiskStore::DiskStore(std::unique_ptr<BlockFile> file, std::string name, std::uint64_t host_bytes)
    : CachedStore(host_bytes), file_(std::move(file)), name_(std::move(name)), index_(read_store(*file_, name_)) {
  if (facts().has(Precision::full)) set_precisions(1U << static_cast<unsigned>(Precision::full));
}

void DiskStore::add(Precision p) {
  if (p == Precision::skip) return;
  if (!facts().has(p)) {
    std::string there;
    for (const Precision stored : facts().stored()) there += (there.empty() ? "" : ",") + layout().name(stored);
    throw InputError(fmt::format("{}: has its experts at {} only, and {} is needed: ferry pack --precisions {},{}",
                                 name_, there, layout().name(p), there, layout().name(p)));
  }
  set_precisions(static_cast<std::uint8_t>(precisions() | 1U << static_cast<unsigned>(p)));
}

void DiskStore::read(Variant v, BlockMemory& to) const {
  constexpr int attempts = 3;
  std::string reason;
  for (int i = 0; i < attempts; ++i) {
    if (i > 0) {
      file_->forget(facts().at(v), whole_blocks(to.size()));
      count_retry();
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
  count_read(bytes);
  return checksum(to.data(), to.size()) == index_.checksums[facts().block(v)] ? "" : "its checksum differs";
}

StoreReads DiskStore::source() const {
  StoreReads r;
  r.file = name_;
  r.how = file_->how();
  r.rounded = facts().rounded;
  return r;
}

}  // namespace ferry::engine
