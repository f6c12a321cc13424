/// @file
/// One cache policy on its own: experts of one size, asked for one after another and fetched on demand.
#pragma once
#include <cstdint>
#include <vector>

#include "support/policies.hpp"
#include "support/shapes.hpp"

namespace ferry::test {

/// Calls the policy as the core does, but without leases, prefetches and other precisions: each request is its own step.
/// The lowest free slots are filled first. A refused expert is served, but not kept.
template <class Cache>
class CacheSimulator {
 public:
  /// `cache` was placed for a pool of `slots` slots, and nobody else calls it.
  CacheSimulator(Placed<Cache>& cache, std::uint32_t slots) : cache_(cache), nothing_barred_(slots, 0), slots_(slots) {}

  /// True: a hit.
  bool ask(ExpertId id) {
    const Variant what{id, Precision::full};
    if constexpr (part::BeginsStep<Cache>) cache_->begin_step(StepOf(Phase::decode, 1));
    if constexpr (part::SeesUse<Cache>) cache_->used(what);
    std::uint32_t slot = 0;
    while (slot < holds_.size() && holds_[slot] != id) ++slot;
    if (slot < holds_.size()) {
      cache_->touch(what, slot);
      return true;
    }
    cache_->touch(what, no_slot);
    if (!part::caches<Cache>()) return false;
    if (slot < slots_) {
      holds_.push_back(id);
    } else {
      slot = cache_->victim(what, {nothing_barred_.data(), 1});
      if (slot == no_slot) return false;
      holds_.at(slot) = id;
    }
    cache_->replace(slot, what, true);
    return false;
  }

 private:
  Placed<Cache>& cache_;
  std::vector<ExpertId> holds_;  ///< by slot, as far as they are filled
  std::vector<std::uint8_t> nothing_barred_;
  std::uint32_t slots_;
};

/// Requests for these experts of layer 0.
inline std::vector<ExpertId> requests_for(const std::vector<std::uint16_t>& experts) {
  std::vector<ExpertId> ids;
  for (const std::uint16_t e : experts) ids.push_back({0, e});
  return ids;
}

/// How many of the requests hit.
template <class Cache>
std::uint32_t hits(Placed<Cache>& cache, std::uint32_t slots, const std::vector<ExpertId>& requests) {
  CacheSimulator<Cache> simulator(cache, slots);
  std::uint32_t count = 0;
  for (const ExpertId id : requests) count += simulator.ask(id) ? 1 : 0;
  return count;
}

}  // namespace ferry::test
