/// @file
/// The clairvoyant cache: Belady's MIN.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Evicts the expert whose next use lies farthest in the future, which it has to be told: for traces and bounds.
///
/// Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966:
/// MIN. With experts of one size, fetched on demand one after another, no policy has more hits. It is no bound beyond
/// that: not where a step's leases bar slots, where prefetches hide misses, or where precisions differ in cost.
///
/// `touch` is what advances time: every use in `future` must be touched, hit or miss, and nothing else. Only the order
/// of each expert's own uses counts between touches, so within one layer of a step any order of touches will do.
///
/// Complexity: touch and replace O(1), victim O(slots), reserve O(future). State: 4 bytes a use of the pool's experts,
/// 8 an expert, 4 a slot.
///
/// Ambiguities resolved. The policy refuses an expert whose next use comes after that of every candidate for eviction:
/// the stream slots serve it. (Paging must load every page, and has no such choice.) An expert that is never used again
/// counts as the farthest. Of equal candidates the lower slot is evicted, also for an incoming expert that is equal to
/// them. Precisions are not told apart.
class Belady {
 public:
  /// The uses to come, in order. Only `reserve` reads it, and copies those of the pool's layers: every pool can be
  /// given the same list.
  View<const ExpertId> future;

  void reserve(Carver& carve, const PoolShape& pool) {
    first_layer_ = pool.first_layer;
    experts_ = pool.experts;
    const std::size_t keys = std::size_t{pool.layers} * pool.experts;
    std::size_t uses = 0;
    for (std::uint32_t i = 0; i < future.size; ++i) {
      if (future[i].expert >= pool.experts) {
        detail::fail<ConfigError>("Belady: future[" + std::to_string(i) + "] is expert " +
                                  std::to_string(future[i].expert) + ", the model has experts 0 to " +
                                  std::to_string(pool.experts - 1));
      }
      uses += looks_after(pool, future[i]) ? 1U : 0U;
    }
    carve(uses_, uses);
    carve(next_, keys, 0U);
    carve(end_, keys, 0U);
    carve(holds_, pool.slots, nothing);
    if (carve.measuring()) return;
    for (const ExpertId id : future) {
      if (looks_after(pool, id)) ++end_[key(id)];
    }
    std::uint32_t first = 0;
    for (std::size_t k = 0; k < keys; ++k) {
      next_[k] = first;
      first += end_[k];
      end_[k] = next_[k];
    }
    for (std::uint32_t i = 0; i < future.size; ++i) {
      if (looks_after(pool, future[i])) uses_[end_[key(future[i])]++] = i;
    }
    future = {};  // the block must not point at the host's memory
  }

  FERRY_HD void touch(Variant what, std::uint32_t /*slot*/) noexcept {
    const std::uint32_t k = key(what.id);
    if (next_[k] != end_[k]) ++next_[k];
  }

  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) const noexcept {
    std::uint32_t farthest = no_slot;
    std::uint32_t farthest_use = 0;
    for (std::uint32_t slot = 0; slot < holds_.size(); ++slot) {
      if (barred[slot]) continue;
      const std::uint32_t use = next_use(holds_[slot]);
      if (farthest == no_slot || use > farthest_use) {
        farthest = slot;
        farthest_use = use;
      }
    }
    return next_use(key(incoming.id)) > farthest_use ? no_slot : farthest;
  }

  FERRY_HD void replace(std::uint32_t slot, Variant what, bool /*demand*/) noexcept { holds_[slot] = key(what.id); }

  [[nodiscard]] const char* check() const noexcept {
    std::uint32_t first = 0;
    for (std::uint32_t k = 0; k < end_.size(); first = end_[k++]) {
      if (next_[k] < first || next_[k] > end_[k]) return "Belady: an expert's next use is not among its own";
      for (std::uint32_t i = first + 1; i < end_[k]; ++i) {
        if (uses_[i - 1] >= uses_[i]) return "Belady: the uses of an expert do not ascend";
      }
    }
    for (const std::uint32_t k : holds_) {
      if (k != nothing && k >= end_.size()) return "Belady: a slot holds an expert of another pool";
    }
    return nullptr;
  }

 private:
  static constexpr std::uint32_t never = 0xffffffffU;
  static constexpr std::uint32_t nothing = 0xffffffffU;

  static bool looks_after(const PoolShape& pool, ExpertId id) {
    return id.layer >= pool.first_layer && id.layer < pool.first_layer + pool.layers;
  }
  FERRY_HD std::uint32_t key(ExpertId id) const noexcept {
    return static_cast<std::uint32_t>(id.layer - first_layer_) * experts_ + id.expert;
  }
  FERRY_HD std::uint32_t next_use(std::uint32_t k) const noexcept {
    return k == nothing || next_[k] == end_[k] ? never : uses_[next_[k]];
  }

  Array<std::uint32_t> uses_;   ///< positions in `future`, those of one expert after those of another, ascending
  Array<std::uint32_t> next_;   ///< [layers, experts] where in uses_ an expert's next use stands
  Array<std::uint32_t> end_;    ///< [layers, experts] where its uses end: it is used no more once `next_` is there
  Array<std::uint32_t> holds_;  ///< [slots] key of the expert in a slot
  std::uint32_t first_layer_ = 0, experts_ = 0;
};

static_assert(CachePolicy<Belady>);

}  // namespace ferry::inline FERRY_ABI
