/// @file
/// What the link is to do.
#pragma once
#include "ferry/residency.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The commands of one call of the core. All calls O(1) except `submit_held`.
class CommandList {
 public:
  void reserve(Carver& carve, std::uint32_t experts, std::uint32_t slots) {
    carve(submits_, std::size_t{experts} + slots);
    carve(held_, slots);
    carve(drops_, slots);
  }

  FERRY_HD void clear() noexcept { drop_count_ = submit_count_ = 0; }
  FERRY_HD Commands view() const noexcept { return {{drops_.data(), drop_count_}, {submits_.data(), submit_count_}}; }
  FERRY_HD std::uint32_t submits() const noexcept { return submit_count_; }

  /// The copy of `what` into `slot`, which is `to`. `hold`: keep it back until `submit_held`.
  FERRY_HD void submit(std::uint32_t slot, const Residency::Slot& to, Variant what, bool demand, bool hold) noexcept {
    Copy& copy = hold ? held_[held_count_++] : submits_[submit_count_++];
    copy.ticket = to.ticket;
    copy.what = what;
    copy.slot = slot;
    copy.after = to.last_reader;
    copy.demand = demand;
  }
  FERRY_HD void submit_held() noexcept {
    for (std::uint32_t i = 0; i < held_count_; ++i) submits_[submit_count_++] = held_[i];
    held_count_ = 0;
  }
  /// The queued prefetch with this ticket is taken back.
  FERRY_HD void drop(Ticket ticket) noexcept { drops_[drop_count_++] = ticket; }

 private:
  Array<Copy> submits_;
  Array<Copy> held_;  ///< prefetches that must follow demand copies which still wait for `done`
  Array<Ticket> drops_;
  std::uint32_t submit_count_ = 0, held_count_ = 0, drop_count_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
