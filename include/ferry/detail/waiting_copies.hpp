/// @file
/// Copies that wait for a simulated link, and which of them goes next.
#pragma once
#include <algorithm>
#include <deque>
#include <optional>

#include "ferry/detail/saturating.hpp"
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// A copy that waits, or has begun.
struct SimulatedCopy {
  Copy copy;
  Nanoseconds from;              ///< when it may begin
  std::uint64_t left;            ///< bytes that have not crossed where it begins or goes on
  Nanoseconds landed = longest;  ///< when it has; until then `longest`
  bool waited_for = false;       ///< nothing overtakes it any more
  bool dropped = false;          ///< it ends behind its chunk
};

/// Demand copies in their order, then prefetches in theirs. A prefetch that was overtaken goes on before any other prefetch.
/// It also goes on before a demand copy that may not begin yet or goes to its slot, and before any if somebody waits for it.
class WaitingCopies {
 public:
  [[nodiscard]] bool empty() const noexcept { return !overtaken_ && demand_.empty() && prefetch_.empty(); }
  void push(const SimulatedCopy& c) { (c.copy.demand ? demand_ : prefetch_).push_back(c); }
  void drop(Ticket ticket) noexcept {
    std::erase_if(prefetch_, [&](const SimulatedCopy& c) { return c.copy.ticket == ticket; });
    if (overtaken_ && overtaken_->copy.ticket == ticket) overtaken_.reset();
  }
  void overtake(const SimulatedCopy& prefetch) { overtaken_ = prefetch; }

  /// The first demand copy, before which no prefetch begins; nullptr: there is none.
  [[nodiscard]] const SimulatedCopy* demand() const noexcept { return demand_.empty() ? nullptr : &demand_.front(); }
  /// The first prefetch that has not begun; nullptr: there is none.
  [[nodiscard]] const SimulatedCopy* prefetch() const noexcept {
    return prefetch_.empty() ? nullptr : &prefetch_.front();
  }
  [[nodiscard]] const SimulatedCopy* overtaken() const noexcept { return overtaken_ ? &*overtaken_ : nullptr; }
  /// What goes next on a link that is free from then on; nullptr: nothing waits.
  [[nodiscard]] const SimulatedCopy* next(Nanoseconds free) const noexcept {
    const SimulatedCopy* const first = demand();
    if (overtaken_ && (first == nullptr || overtaken_->waited_for || first->from > free ||
                       first->copy.slot == overtaken_->copy.slot)) {
      return overtaken();
    }
    return first != nullptr ? first : prefetch();
  }
  SimulatedCopy take(Nanoseconds free) {
    const SimulatedCopy* const goes = next(free);
    const SimulatedCopy taken = *goes;
    if (goes == overtaken()) {
      overtaken_.reset();
    } else {
      (taken.copy.demand ? demand_ : prefetch_).pop_front();
    }
    return taken;
  }

  /// Whether that copy waits. Nothing overtakes it any more.
  bool await(Ticket ticket) noexcept {
    const auto is = [&](const SimulatedCopy& c) { return c.copy.ticket == ticket; };
    if (overtaken_ && is(*overtaken_)) return overtaken_->waited_for = true;
    std::deque<SimulatedCopy>& queue = is_prefetch(ticket) ? prefetch_ : demand_;
    const auto found = std::find_if(queue.begin(), queue.end(), is);
    return found != queue.end() && (found->waited_for = true);
  }

 private:
  std::deque<SimulatedCopy> demand_, prefetch_;  ///< not begun
  std::optional<SimulatedCopy> overtaken_;       ///< between two chunks
};

}  // namespace ferry::inline FERRY_ABI::detail
