/// @file
/// What links say of tickets.
#pragma once
#include <cstddef>
#include <string>

#include "ferry/detail/saturating.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// "All up to the one before": what has landed while `t` has not.
constexpr Ticket ticket_before(Ticket t) noexcept {
  return Ticket{static_cast<std::uint64_t>(t) - 1};
}

/// How long copies take, for a link that has to guess when the one under way ends: as long as the last of its precision.
class CopyTimes {
 public:
  void note(Precision p, Nanoseconds took) noexcept { last_[static_cast<unsigned>(p)] = took; }
  /// What is left at `now` of one that began at `begin`, or of several that land together, at least 1; 0 where none of its
  /// precision has landed yet.
  [[nodiscard]] Nanoseconds left(Precision p, Nanoseconds begin, Nanoseconds now,
                                 std::size_t copies = 1) const noexcept {
    const Nanoseconds whole = product(last_[static_cast<unsigned>(p)], copies), end = sum(begin, whole);
    return whole == 0 ? 0 : end > now ? end - now : 1;
  }

 private:
  Nanoseconds last_[precision_count] = {};
};

/// Notes a copy as the last of its kind. A pipeline's tickets ascend. Those of another pipeline would count as landed long
/// ago, and so they stop the link. True: it is another's, and what the link has told of landed copies is not of its own.
inline bool note_submitted(Ticket ticket, Ticket& last, std::string& failed) {
  const bool of_another = ticket <= last;
  if (of_another && failed.empty()) failed = "the link has served another pipeline, expected one of its own for each";
  last = ticket;
  return of_another;
}

/// Throws LinkError for a wait that would never end. `last`: the last ticket of its kind (demand or prefetch) submitted.
inline void check_submitted(Ticket ticket, Ticket last) {
  if (ticket <= last) return;
  detail::fail<LinkError>("wait for copy " + std::to_string(static_cast<std::uint64_t>(ticket)) +
                          " that was not submitted: call done() for the task before it in its slot");
}

}  // namespace ferry::inline FERRY_ABI::detail
