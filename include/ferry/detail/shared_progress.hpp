/// @file
/// How far a simulated copy, or an expert on the host, has got while the other slows it.
#pragma once
#include <algorithm>

#include "ferry/sim/costs.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// What the link or the host is working on. How much of it is left is worked out only where its pace changes: looking at it
/// in between must not change how it is rounded. Work that is to go on later ends where `stop` of it is left.
struct SharedProgress {
  static constexpr Nanoseconds never = longest;
  static constexpr Nanoseconds longest_work = (Nanoseconds{1} << 42U) - 1;  ///< what share_of works with

  bool at_work = false, slowed = false;
  SharedTime takes;
  Nanoseconds begin = 0, since = 0, left = 0;  ///< at `since`, of `takes.alone`
  Nanoseconds stop = 0;                        ///< it ends where no more than this is left

  void start(SharedTime time, Nanoseconds now) noexcept { *this = {true, false, time, now, now, time.alone, 0}; }
  Nanoseconds end() const noexcept { return end(stop); }
  /// When no more than `until` is left.
  Nanoseconds end(Nanoseconds until) const noexcept {
    if (!at_work) return never;
    if (!slowed) return later(since, left - until);
    const auto slow = [&](Nanoseconds rest) { return share(takes.alone - rest, takes.beside, takes.alone); };
    return later(since, slow(until) - slow(left));  // rounded up
  }
  /// What is left at `now`.
  Nanoseconds left_at(Nanoseconds now) const noexcept {
    return left - (slowed ? share(now - since, takes.alone, takes.beside) : now - since);
  }
  void pace(bool slow, Nanoseconds now) noexcept {
    slow = slow && takes.alone > 0 && takes.beside > takes.alone;
    if (!at_work || slow == slowed) return;
    left = left_at(now);
    since = now;
    slowed = slow;
  }

  /// No later than the end of time, which comes before never.
  static Nanoseconds later(Nanoseconds from, Nanoseconds takes) noexcept {
    return std::min(sum(from, takes), never - 1);
  }

 private:
  static Nanoseconds share(Nanoseconds amount, Nanoseconds by, Nanoseconds of) noexcept {
    return static_cast<Nanoseconds>(
        share_of(static_cast<std::uint64_t>(amount), static_cast<std::uint64_t>(by), static_cast<std::uint64_t>(of)));
  }
};

}  // namespace ferry::inline FERRY_ABI::detail
