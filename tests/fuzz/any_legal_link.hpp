/// @file
/// A link that does anything that concepts.hpp allows, as the input decides.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"
#include "support/invariant_checker.hpp"

namespace ferry::fuzz {

/// Decisions from the bytes of an input; after its end all decisions are 0.
class Choices {
 public:
  explicit Choices(const std::string& bytes) : bytes_(bytes) {}

  [[nodiscard]] bool left() const { return at_ < bytes_.size(); }
  std::uint32_t byte() { return left() ? static_cast<unsigned char>(bytes_[at_++]) : 0; }
  /// 0 to n - 1.
  std::uint32_t below(std::uint32_t n) { return (n <= 256 ? byte() : byte() << 8U | byte()) % n; }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
  /// True with a chance of `of_256` in 256; never after the input's end.
  bool rarely(std::uint32_t of_256) { return byte() >= 256 - of_256; }
  template <class T>
  const T& of(const std::vector<T>& some) {
    return some[below(static_cast<std::uint32_t>(some.size()))];
  }

 private:
  const std::string& bytes_;
  std::size_t at_ = 0;
};

/// Copies begin in the contract's order. Several may be on their way, be overtaken or taken back, and land in any order that
/// keeps each slot's own. The device lags behind the caller, `seen` may return an old state, and copies may fail, once or for
/// good. Knows the content of each slot, and throws when a task reads another expert.
class AnyLegalLink {
 public:
  AnyLegalLink(std::uint32_t slots, Choices& choices) : slots_(slots), choices_(choices) {}

  // Link

  void submit(const Copy& copy) noexcept {
    submitted.push_back(copy);
    (copy.demand ? demand_ : prefetch_).push_back(copy);
    Ticket& last = copy.demand ? last_demand_ : last_prefetch_;
    if (copy.ticket <= last) wrong_ = "tickets do not ascend";
    if (copy.slot >= slots_.size()) wrong_ = "no such slot";
    if (copy.after > named_) wrong_ = "a copy behind a fence that was not named";
    last = copy.ticket;
  }
  void drop(Ticket ticket) noexcept {
    dropped.push_back(ticket);
    std::erase_if(prefetch_, [&](const Copy& c) { return c.ticket == ticket; });
    for (Moving& m : moving_) m.dropped = m.dropped || m.copy.ticket == ticket;
    if (!choices_.rarely(128)) return;
    std::erase_if(moving_,
                  [&](const Moving& m) { return m.copy.ticket == ticket; });  // what is left of it never crosses
  }
  Seen seen() noexcept {
    if (!choices_.rarely(64)) {
      for (std::uint32_t n = choices_.below(5); n > 0 && progress(); --n) {
      }
    }
    if (choices_.rarely(48)) return told_;  // an old state
    Seen s{last_demand_, last_prefetch_, last_prefetch_, 0};
    if (!demand_.empty()) s.demand_landed = before(demand_.front().ticket);
    if (!prefetch_.empty()) s.prefetch_begun = s.prefetch_landed = before(prefetch_.front().ticket);
    for (const Moving& m : moving_) {
      if (m.dropped) continue;
      Ticket& landed = m.copy.demand ? s.demand_landed : s.prefetch_landed;
      landed = std::min(landed, before(m.copy.ticket));
    }
    static const std::vector<Nanoseconds> some{0, 1, 900, detail::longest, -1};
    s.link_ns = choices_.of(some);
    s.chunk_ns = choices_.of(some);
    return told_ = s;
  }
  void fence(Fence f) noexcept {
    if (f <= named_) wrong_ = "fences do not ascend";
    named_ = f;
    for (Read& r : reads_) r.before = r.before == Fence::none ? f : r.before;
  }
  void wait(Ticket ticket) {
    if (ticket > (is_prefetch(ticket) ? last_prefetch_ : last_demand_)) detail::fail<LinkError>("not submitted");
    if (dead_ || std::exchange(fails_once_, false)) detail::fail<LinkError>("a copy failed");
    const auto is = [&](const Copy& c) { return c.ticket == ticket; };
    const auto on_its_way = [&] {
      return std::any_of(demand_.begin(), demand_.end(), is) || std::any_of(prefetch_.begin(), prefetch_.end(), is) ||
             std::any_of(moving_.begin(), moving_.end(), [&](const Moving& m) { return is(m.copy); });
    };
    while (on_its_way()) {
      if (!progress() && !reach()) throw test::Violation(4, "a copy can neither begin nor land");
    }
  }

  // The device and mishaps

  /// Reads the slot after all work so far, and before the next fence.
  void read(const Task& t) { reads_.push_back({t.slot, t.what, Fence::none}); }
  void fail_once() { fails_once_ = true; }
  void fail_for_good() { dead_ = true; }
  [[nodiscard]] bool is_submitted(Ticket t) const { return t <= (is_prefetch(t) ? last_prefetch_ : last_demand_); }

  /// What a slot holds; nothing while it is being written.
  [[nodiscard]] const std::optional<Variant>& content(std::uint32_t slot) const { return slots_[slot]; }
  void check() const {
    if (wrong_ != nullptr) throw test::Violation(3, wrong_);
  }

  std::vector<Copy> submitted;  ///< since the caller took them
  std::vector<Ticket> dropped;

 private:
  struct Moving {
    Copy copy;
    bool dropped;
  };
  struct Read {
    std::uint32_t slot;
    Variant what;
    Fence before;
  };

  static Ticket before(Ticket t) { return Ticket{static_cast<std::uint64_t>(t) - 1}; }

  /// Lets a copy begin or land, or the device reach a fence; false if nothing of that can happen.
  bool progress() noexcept {
    if (dead_) return false;
    const bool land_first = choices_.rarely(100);
    if (land_first && land()) return true;
    if (begin() || land()) return true;
    return choices_.rarely(128) && reach();
  }
  bool begin() noexcept {
    std::vector<Copy>& queue = demand_.empty() ? prefetch_ : demand_;
    if (queue.empty() || queue.front().after > reached_) return false;
    slots_[queue.front().slot].reset();
    moving_.push_back({queue.front(), false});
    queue.erase(queue.begin());
    return true;
  }
  bool land() noexcept {
    if (moving_.empty()) return false;
    const auto chosen = moving_.begin() + choices_.below(static_cast<std::uint32_t>(moving_.size()));
    const auto same = [&](const Moving& m) { return m.copy.slot == chosen->copy.slot; };
    const auto first = std::find_if(moving_.begin(), moving_.end(), same);  // into that slot
    const bool alone = std::count_if(moving_.begin(), moving_.end(), same) == 1;
    if (alone) slots_[first->copy.slot] = first->copy.what;
    moving_.erase(first);
    return true;
  }
  /// The device reaches the next fence that was named.
  bool reach() noexcept {
    if (reached_ == named_) return false;
    reached_ = Fence{static_cast<std::uint64_t>(reached_) + 1};
    for (const Read& r : reads_) {
      if (r.before != Fence::none && r.before <= reached_ && slots_[r.slot] != r.what) {
        wrong_ = "a task reads what is not its expert";
      }
    }
    std::erase_if(reads_, [&](const Read& r) { return r.before != Fence::none && r.before <= reached_; });
    return true;
  }

  std::vector<std::optional<Variant>> slots_;
  Choices& choices_;
  std::vector<Copy> demand_, prefetch_;  ///< not begun
  std::vector<Moving> moving_;           ///< in the order in which they began
  std::vector<Read> reads_;              ///< of the device, not done
  Ticket last_demand_ = Ticket::none, last_prefetch_ = Ticket::none;
  Fence named_ = Fence::none, reached_ = Fence::none;
  Seen told_;
  bool fails_once_ = false, dead_ = false;
  const char* wrong_ = nullptr;
};

static_assert(Link<AnyLegalLink>);

}  // namespace ferry::fuzz
