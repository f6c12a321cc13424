/// @file
/// What links say of tickets.
#pragma once
#include <string>

#include "ferry/error.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// "All up to the one before": what has landed while `t` has not.
constexpr Ticket ticket_before(Ticket t) noexcept {
  return Ticket{static_cast<std::uint64_t>(t) - 1};
}

/// Throws LinkError for a wait that would never end. `last`: of this kind (demand or prefetch) that was submitted.
inline void check_submitted(Ticket ticket, Ticket last) {
  if (ticket <= last) return;
  throw LinkError("wait for copy " + std::to_string(static_cast<std::uint64_t>(ticket)) +
                  " that was not submitted: call done() for the task before it in its slot");
}

}  // namespace ferry::inline FERRY_ABI::detail
