/// @file
/// The other side of a CommandBuffer: it copies beside its computation, and reports how far it has got.
#pragma once
#include <algorithm>
#include <deque>
#include <stdexcept>
#include <vector>

#include "ferry/link/command_buffer.hpp"

namespace ferry::test {

/// Makes one copy at a time, demand first, and only when it is told to. Slots hold variants instead of bytes.
class CommandWorker {
 public:
  explicit CommandWorker(std::uint32_t slots) : slots_(slots, Variant{{0, no_expert}, Precision::skip}) {}

  void take(View<const Command> commands) {
    for (const Command& c : commands) {
      switch (c.kind) {
        case Command::Kind::copy:
          submit(c.copy);
          break;
        case Command::Kind::drop:
          std::erase_if(prefetch_, [&](const Copy& p) { return p.ticket == c.copy.ticket; });
          break;
        case Command::Kind::fence:
          reached_ = c.copy.after;
          break;  // its computation is never behind
        case Command::Kind::wait:
          while (!landed(c.copy.ticket)) {
            if (!copy_one()) throw std::logic_error("waits for a copy that it was not given");
          }
          break;
      }
    }
  }
  /// Carries out one copy; false if there is none.
  bool copy_one() {
    std::deque<Copy>& queue = demand_.empty() ? prefetch_ : demand_;
    if (queue.empty()) return false;
    slots_[queue.front().slot] = queue.front().what;
    if (queue.front().demand) demand_landed_ = queue.front().ticket;
    queue.pop_front();
    return true;
  }
  [[nodiscard]] Seen seen() const {
    const Ticket prefetch =
        prefetch_.empty() ? last_prefetch_ : Ticket{static_cast<std::uint64_t>(prefetch_.front().ticket) - 1};
    return {demand_landed_, prefetch, prefetch, 0};
  }
  [[nodiscard]] Variant slot(std::uint32_t s) const { return slots_[s]; }

 private:
  void submit(const Copy& copy) {
    if (copy.after > reached_) throw std::logic_error("a copy overwrites what is still to be read");
    if (copy.demand == is_prefetch(copy.ticket)) throw std::logic_error("a ticket is of the other kind");
    (copy.demand ? demand_ : prefetch_).push_back(copy);
    if (!copy.demand) last_prefetch_ = copy.ticket;
  }
  [[nodiscard]] bool landed(Ticket t) const {
    const std::deque<Copy>& queue = is_prefetch(t) ? prefetch_ : demand_;
    return std::none_of(queue.begin(), queue.end(), [&](const Copy& c) { return c.ticket == t; });
  }

  std::vector<Variant> slots_;
  std::deque<Copy> demand_, prefetch_;
  Ticket demand_landed_ = Ticket::none, last_prefetch_ = Ticket::none;
  Fence reached_ = Fence::none;
};

}  // namespace ferry::test
