/// @file
/// Prefetches of prefill that found their pool full, on their way to stream slots.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/saturating.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// What the next layer of a prefill may need waits here until the present layer leaves a stream slot, if prefetching it is
/// more likely to win time than to lose it. If the expert is needed, the time in which the link would have been idle is won.
/// If not, demand waits for the rest of a copy that has begun.
///
/// All calls O(1). State: 8 bytes a stream slot.
class Staging {
 public:
  void reserve(Carver& carve, std::uint32_t stream_slots) { carve(waiting_, stream_slots); }

  /// A layer is planned: of `absent` experts, `asked` were asked for, which is how likely an absent expert of the next
  /// layer is needed, too.
  FERRY_HD void plan(std::uint32_t asked, std::uint32_t absent) noexcept {
    asked_ = asked;
    absent_ = absent > asked ? absent : asked;
  }
  /// A layer is over. From its last copy to the next layer's plan the link has about that long.
  FERRY_HD void finish(const Times& times) noexcept { idle_ns_ = sum(sum(times.attention, times.gate), times.device); }

  /// Costs that are unknown (0) are no reason against it.
  FERRY_HD bool is_worth(Nanoseconds copy_ns) const noexcept {
    if (idle_ns_ == 0 || copy_ns <= idle_ns_) return true;
    return product(idle_ns_, asked_) >= product(copy_ns - idle_ns_, absent_ - asked_);
  }

  /// What finds no room here is forgotten: no more slots will be free.
  FERRY_HD void push(Variant what) noexcept {
    if (count_ < waiting_.size()) waiting_[count_++] = what;
  }
  FERRY_HD bool empty() const noexcept { return next_ == count_; }
  FERRY_HD Variant front() const noexcept { return waiting_[next_]; }
  FERRY_HD void pop() noexcept { ++next_; }
  FERRY_HD void clear() noexcept { next_ = count_ = 0; }

 private:
  Array<Variant> waiting_;  ///< [stream slots] best first
  std::uint32_t count_ = 0, next_ = 0, asked_ = 0, absent_ = 0;
  Nanoseconds idle_ns_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
