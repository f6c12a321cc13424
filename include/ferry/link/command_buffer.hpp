/// @file
/// A link that only writes down what is to be done.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "ferry/concepts.hpp"
#include "ferry/detail/tickets.hpp"

namespace ferry::inline FERRY_ABI {

/// One call of a link, as data: trivially copyable, without pointers.
struct Command {
  /// Which call of a link it is.
  enum class Kind : std::uint8_t {
    copy,   ///< carry out `copy`
    drop,   ///< take the prefetch `copy.ticket` back, if it has not begun
    fence,  ///< `copy.after` is reached once the work that was given before it is
    wait    ///< the work that follows reads what the copy `copy.ticket` brings
  };
  Kind kind = Kind::copy;  ///< which call
  Copy copy;               ///< for kinds other than `copy`, only the member that is named above is set
};

/// Keeps the commands of a pipeline until the engine takes them, for whoever carries them out: a later call, another
/// thread or process, a file. Nothing is called back, and no byte is moved.
///
/// The engine puts its own work between them: it takes the commands before it passes a group of tasks on, and gives both
/// to the other side in that order.
///
/// How far the other side has got is for the engine to say:
///  - `Progress::in_order`: it carries out one thing after the other, so that each copy has landed before anything that
///    comes behind it. Nothing is reported; commands of the kinds drop, fence and wait may be passed over.
///  - `Progress::reported`: copies run beside its computation, and it keeps what concepts.hpp asks of a Link: demand before
///    prefetches that have not begun, `copy.after` before the first byte, waits. `report` tells what it has seen.
///
/// It serves one pipeline for its life: with the first copy of another it stops, and `wait` throws LinkError.
///
/// Its memory grows with what is not taken yet.
class CommandBuffer {
 public:
  /// What the other side promises; see above.
  enum class Progress : std::uint8_t {
    in_order,  ///< one thing after the other: nothing is reported
    reported   ///< a Link's promises: `report` tells how far it has got
  };

  /// With nothing in it.
  explicit CommandBuffer(Progress progress = Progress::in_order) : progress_(progress) {}

  /// Valid until the next call of the pipeline.
  [[nodiscard]] View<const Command> commands() const noexcept { return commands_; }
  /// After the commands have been taken.
  void clear() noexcept { commands_.clear(); }
  /// With Progress::reported: how far the other side has got. A dropped prefetch counts as begun and landed. What has
  /// become known once stays known, so that reports may overtake each other. Throws UsageError for copies that were never
  /// submitted, and with Progress::in_order.
  void report(const Seen& seen) {
    if (progress_ == Progress::in_order) detail::fail<UsageError>("report: commands are carried out in order");
    if (seen.demand_landed > last_demand_ || seen.prefetch_begun > last_prefetch_ ||
        seen.prefetch_landed > last_prefetch_) {
      detail::fail<UsageError>("report: a copy that was not submitted, expected at most demand copy " +
                               number(last_demand_) + " and prefetch " + number(last_prefetch_));
    }
    advance(seen);
  }

  // Link

  void submit(const Copy& copy) noexcept {
    if (detail::note_submitted(copy.ticket, copy.demand ? last_demand_ : last_prefetch_, failed_)) seen_ = {};
    if (!failed_.empty()) return;
    commands_.push_back({Command::Kind::copy, copy});
    if (progress_ == Progress::in_order) advance({last_demand_, last_prefetch_, last_prefetch_, 0});
  }
  void drop(Ticket ticket) noexcept { add(Command::Kind::drop, ticket, Fence::none); }
  [[nodiscard]] Seen seen() noexcept { return seen_; }
  void fence(Fence fence) noexcept { add(Command::Kind::fence, Ticket::none, fence); }
  void wait(Ticket ticket) {
    if (!failed_.empty()) detail::fail<LinkError>(failed_);
    detail::check_submitted(ticket, is_prefetch(ticket) ? last_prefetch_ : last_demand_);
    add(Command::Kind::wait, ticket, Fence::none);
  }

 private:
  static std::string number(Ticket ticket) { return std::to_string(static_cast<std::uint64_t>(ticket)); }
  void advance(const Seen& seen) noexcept {
    if (!failed_.empty()) return;
    seen_.demand_landed = std::max(seen_.demand_landed, seen.demand_landed);
    seen_.prefetch_begun = std::max(seen_.prefetch_begun, seen.prefetch_begun);
    seen_.prefetch_landed = std::max(seen_.prefetch_landed, seen.prefetch_landed);
    seen_.link_ns = seen.link_ns;
    seen_.chunk_ns = seen.chunk_ns;
  }
  void add(Command::Kind kind, Ticket ticket, Fence fence) {
    Command command;
    command.kind = kind;
    command.copy.ticket = ticket;
    command.copy.after = fence;
    commands_.push_back(command);
  }

  Progress progress_;
  std::vector<Command> commands_;
  Seen seen_;
  Ticket last_demand_ = Ticket::none, last_prefetch_ = Ticket::none;
  std::string failed_;  ///< why it serves nobody any more
};

static_assert(Link<CommandBuffer>);

}  // namespace ferry::inline FERRY_ABI
