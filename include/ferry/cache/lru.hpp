/// @file
/// Least recently used.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert whose last use lies furthest back: a doubly linked list of slots, most recent first.
///
/// Source: textbook; what llama.cpp's and mixtral-offloading's caches do.
/// A prefetch enters at the front like a demand load: otherwise it would be the next victim before it is used.
///
/// Complexity: touch and replace O(1); victim O(1 + barred slots at the end). State: 8 bytes a slot.
class Lru {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    end_ = pool.slots;
    carve(links_, std::size_t{pool.slots} + 1);
    if (carve.measuring()) return;
    for (std::uint32_t i = 0; i <= end_; ++i) links_[i] = {i == 0 ? end_ : i - 1, i == end_ ? 0 : i + 1};
  }

  FERRY_HD void touch(Variant /*what*/, std::uint32_t slot) noexcept {
    if (slot != no_slot) to_front(slot);
  }

  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    for (std::uint32_t slot = links_[end_].previous; slot != end_; slot = links_[slot].previous) {
      if (!barred[slot]) return slot;
    }
    return no_slot;
  }

  FERRY_HD void replace(std::uint32_t slot, Variant /*what*/, bool /*demand*/) noexcept { to_front(slot); }

  /// Links that agree both ways lead back to where they began.
  [[nodiscard]] const char* check() const noexcept {
    std::uint32_t at = end_, nodes = 0;
    do {
      const std::uint32_t next = links_[at].next;
      if (next > end_ || links_[next].previous != at) return "Lru: the links of two neighbours disagree";
      at = next;
      ++nodes;
    } while (at != end_);
    return nodes == end_ + 1 ? nullptr : "Lru: the list lacks a slot";
  }

 private:
  struct Links {
    std::uint32_t previous = 0, next = 0;
  };

  FERRY_HD void to_front(std::uint32_t slot) noexcept {
    // One by one: reading both at once would wait for a neighbour's write of either.
    const std::uint32_t previous = links_[slot].previous, next = links_[slot].next;
    links_[previous].next = next;
    links_[next].previous = previous;
    const std::uint32_t front = links_[end_].next;
    links_[slot] = {end_, front};
    links_[front].previous = slot;
    links_[end_].next = slot;
  }

  Array<Links> links_;  ///< [slots + 1]; the last is the list's head and end
  std::uint32_t end_ = 0;
};

static_assert(CachePolicy<Lru>);

}  // namespace ferry::inline FERRY_ABI
