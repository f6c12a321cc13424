/// @file
/// SIEVE: a queue, a bit and a hand.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the next unvisited slot that a hand finds on its way from old to new. A use sets a slot's bit and moves
/// nothing; the hand clears the bits that it passes; new experts enter at the head, unvisited. An expert that was used only
/// once leaves within one turn of the hand; one that is used again stays where it is.
///
/// Source: Zhang et al., "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI
/// 2024, Algorithm 1. The walk is split in two, as the contract asks: `victim` follows the hand and changes nothing,
/// `replace` clears the bits on the hand's way to the slot and moves the hand behind it.
///
/// Complexity: touch O(1); replace O(1) amortised over the touches, plus barred slots; victim O(slots) at worst.
/// State: 9 bytes a slot.
///
/// Deviations. The hand passes over barred slots, visited or not. A barred slot loses its bit like any other that the
/// hand passes: `replace` is not told what was barred, and in the paper too it would lose the bit and stay.
/// Ambiguities resolved. A prefetch enters unvisited like a demand load. When every slot that is not barred is visited,
/// the hand makes a full turn, clears every bit, and takes the first of them.
class Sieve {
 public:
  void reserve(Carver& carve, const PoolShape& pool) {
    ends_ = hand_ = pool.slots;
    carve(links_, std::size_t{pool.slots} + 1);
    carve(visited_, pool.slots, std::uint8_t{0});
    if (carve.measuring()) return;
    for (std::uint32_t slot = 0; slot <= ends_; ++slot) links_[slot] = {slot, slot};
  }

  FERRY_HD void touch(Variant /*what*/, std::uint32_t slot) noexcept {
    if (slot != no_slot) visited_[slot] = 1;
  }

  FERRY_HD std::uint32_t victim(Variant /*incoming*/, Barred barred) const noexcept {
    const std::uint32_t start = examined_first();
    if (start == ends_) return no_slot;  // nothing in the queue
    std::uint32_t visited = no_slot;     // the first that a second turn would come to
    std::uint32_t slot = start;
    do {
      if (!barred[slot]) {
        if (visited_[slot] == 0) return slot;
        if (visited == no_slot) visited = slot;
      }
      slot = after(slot);
    } while (slot != start);
    return visited;
  }

  FERRY_HD void replace(std::uint32_t slot, Variant /*what*/, bool /*demand*/) noexcept {
    if (queued(slot)) {
      if (visited_[slot] != 0) {  // reached on the second turn: the first one cleared them all
        for (std::uint8_t& bit : visited_) bit = 0;
      }
      for (std::uint32_t passed = examined_first(); passed != slot; passed = after(passed)) visited_[passed] = 0;
      hand_ = links_[slot].newer;
      unlink(slot);
    }
    visited_[slot] = 0;
    const std::uint32_t head = links_[ends_].older;
    links_[slot] = {head, ends_};
    links_[head].newer = slot;
    links_[ends_].older = slot;
  }

  FERRY_HD void forget(std::uint32_t slot) noexcept {
    if (hand_ == slot) hand_ = links_[slot].newer;
    unlink(slot);
  }

  /// Links that agree both ways lead back to where they began.
  [[nodiscard]] const char* check() const noexcept {
    std::uint32_t at = ends_, nodes = 0, linked = 1;
    do {
      const std::uint32_t older = links_[at].older;
      if (older > ends_ || links_[older].newer != at) return "Sieve: the links of two neighbours disagree";
      at = older;
      ++nodes;
    } while (at != ends_);
    for (std::uint32_t slot = 0; slot < ends_; ++slot) linked += queued(slot) ? 1U : 0U;
    if (nodes != linked) return "Sieve: a slot is linked, but not in the queue";
    if (hand_ > ends_ || (hand_ != ends_ && !queued(hand_))) return "Sieve: the hand points at no slot of the queue";
    return nullptr;
  }

 private:
  /// Seen from `ends_`, the queue's head is the next older one and its tail the next newer one.
  struct Links {
    std::uint32_t older = 0, newer = 0;
  };

  FERRY_HD bool queued(std::uint32_t slot) const noexcept { return links_[slot].older != slot; }
  FERRY_HD std::uint32_t or_tail(std::uint32_t at) const noexcept { return at == ends_ ? links_[ends_].newer : at; }
  FERRY_HD std::uint32_t examined_first() const noexcept { return or_tail(hand_); }
  FERRY_HD std::uint32_t after(std::uint32_t slot) const noexcept { return or_tail(links_[slot].newer); }

  FERRY_HD void unlink(std::uint32_t slot) noexcept {
    const std::uint32_t older = links_[slot].older, newer = links_[slot].newer;  // one by one, as Lru
    links_[older].newer = newer;
    links_[newer].older = older;
    links_[slot] = {slot, slot};
  }

  Array<Links> links_;           ///< [slots + 1]; the last closes the ring. A free slot links to itself
  Array<std::uint8_t> visited_;  ///< [slots]
  std::uint32_t ends_ = 0;
  std::uint32_t hand_ = 0;  ///< the slot that the hand points at; `ends_`: beyond the head, so the tail is next
};

static_assert(CachePolicy<Sieve>);

}  // namespace ferry::inline FERRY_ABI
