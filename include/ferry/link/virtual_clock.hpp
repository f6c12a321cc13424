/// @file
/// A link that only computes when things would happen.
#pragma once
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "ferry/concepts.hpp"
#include "ferry/detail/tickets.hpp"
#include "ferry/sim/costs.hpp"
#include "ferry/slot_memory.hpp"
#include "ferry/timeline.hpp"

namespace ferry::inline FERRY_ABI {

/// A deterministic event simulation of three resources: the device, the link, and the host.
///
/// Time is integer nanoseconds and moves only by the calls below. The caller has a place in time of its own,
/// `now`: submissions happen at it, and `seen` looks at it. Device work is queued behind the device's earlier
/// work and does not move `now`; `sync` does.
///
///  - A copy takes `latency_ns` plus its bytes over the bandwidth (rounded up), one at a time, not interrupted.
///  - Demand copies go in order of submission, before every prefetch that has not begun. A demand copy submitted
///    at the instant at which a queued prefetch could begin goes first.
///  - A copy begins when the link is free, it has been submitted, and the fence it follows is reached.
///
/// With a SlotMemory the bytes are moved too, in the link's order, so that an engine can compute with them.
class VirtualClock {
 public:
  struct Options {
    std::uint64_t bytes_per_s = 16'000'000'000;
    Nanoseconds latency_ns = 0;
    bool log = false;  ///< keep every span for a timeline
  };

  VirtualClock(const ModelShape& model, const Options& options, SlotMemory* memory = nullptr)
      : model_(model), options_(options), memory_(memory) {
    if (options.bytes_per_s == 0 || options.bytes_per_s > 1'000'000'000'000'000 || options.latency_ns < 0) {
      throw ConfigError("virtual clock: bytes_per_s must be 1 to 10^15 and latency_ns not negative");
    }
  }

  // Link

  void submit(const Copy& copy) noexcept {
    if (copy.demand) {
      begin_prefetches(now_);
      if (memory_ != nullptr && !writing(copy.slot)) memory_->poison(copy.slot);
      const Nanoseconds start = std::max({link_free_, now_, reached(copy.after)});
      demand_.push_back({copy, now_, carry(copy, start)});
      last_demand_ = copy.ticket;
    } else {
      if (memory_ != nullptr && !writing(copy.slot)) memory_->poison(copy.slot);
      prefetch_.push_back({copy, std::max(now_, reached(copy.after)), not_begun});
      last_prefetch_ = copy.ticket;
    }
  }

  void drop(Ticket ticket) noexcept {
    begin_prefetches(now_);
    for (auto p = prefetch_.begin(); p != prefetch_.end(); ++p) {
      if (p->copy.ticket != ticket) continue;
      if (p->landed == not_begun) prefetch_.erase(p);
      return;
    }
  }

  Seen seen() noexcept {
    begin_prefetches(now_);
    while (!demand_.empty() && demand_.front().landed <= now_) {
      demand_landed_ = demand_.front().copy.ticket;
      demand_.pop_front();
    }
    while (!prefetch_.empty() && prefetch_.front().landed <= now_ && prefetch_.front().landed != not_begun) {
      prefetch_.pop_front();
    }
    Seen s{demand_landed_, last_prefetch_, last_prefetch_};
    if (!prefetch_.empty()) s.prefetch_landed = detail::ticket_before(prefetch_.front().copy.ticket);
    for (const Pending& p : prefetch_) {
      if (p.landed == not_begun) {
        s.prefetch_begun = detail::ticket_before(p.copy.ticket);
        break;
      }
    }
    return s;
  }

  void fence(Fence fence) noexcept {
    while (!fences_.empty() && fences_.front().at <= now_) fences_.pop_front();
    fences_.push_back({fence, std::max(device_free_, now_)});
  }

  /// The device's next work begins no earlier than that copy's landing.
  void wait(Ticket ticket) {
    if (!failed_.empty()) throw LinkError("a copy failed: " + failed_);
    const Nanoseconds from = std::max(device_free_, now_);
    const Nanoseconds landed = landing(ticket);
    if (landed <= from) return;
    stall_ns_ += landed - from;
    log({Lane::device, "wait", from, landed, {}, false, Ticket::none});
    device_free_ = landed;
  }

  // Time

  /// Queues device work of this length; `what`: the expert that it is about, for the timeline.
  void device(Nanoseconds ns, const char* name = "compute", const Variant* what = nullptr) {
    const Nanoseconds from = std::max(device_free_, now_);
    device_free_ = from + ns;
    device_ns_ += ns;
    log({Lane::device, name, from, device_free_, what == nullptr ? Variant{} : *what, what != nullptr, Ticket::none});
  }
  /// Queues work of this length on the host.
  void host(Nanoseconds ns, const char* name = "compute", const Variant* what = nullptr) {
    const Nanoseconds from = std::max(host_free_, now_);
    host_free_ = from + ns;
    host_ns_ += ns;
    log({Lane::host, name, from, host_free_, what == nullptr ? Variant{} : *what, what != nullptr, Ticket::none});
  }
  /// The caller waits for all queued device work.
  void sync_device() noexcept { now_ = std::max(now_, device_free_); }
  /// The caller waits for all queued device and host work.
  void sync() noexcept { now_ = std::max({now_, device_free_, host_free_}); }
  /// The caller waits for every copy that was submitted.
  void drain() {
    for (Pending& p : prefetch_) {
      if (p.landed == not_begun) p.landed = carry(p.copy, std::max(link_free_, p.from));
    }
    now_ = std::max(now_, link_free_);
  }

  [[nodiscard]] Nanoseconds now() const noexcept { return now_; }
  /// When the device, and the host, will have done what is queued.
  [[nodiscard]] Nanoseconds device_free() const noexcept { return std::max(device_free_, now_); }
  [[nodiscard]] Nanoseconds host_free() const noexcept { return std::max(host_free_, now_); }
  [[nodiscard]] Nanoseconds device_ns() const noexcept { return device_ns_; }
  [[nodiscard]] Nanoseconds host_ns() const noexcept { return host_ns_; }
  [[nodiscard]] Nanoseconds stall_ns() const noexcept { return stall_ns_; }
  [[nodiscard]] Nanoseconds busy_ns() const noexcept { return busy_ns_; }
  [[nodiscard]] std::uint64_t bytes_copied() const noexcept { return bytes_copied_; }
  [[nodiscard]] double peak_bytes_per_s() const noexcept { return static_cast<double>(options_.bytes_per_s); }
  [[nodiscard]] const std::vector<Span>& spans() const noexcept { return spans_; }

  [[nodiscard]] Nanoseconds copy_ns(Variant v) const noexcept {
    return options_.latency_ns + duration_ns(model_.bytes(v.id.layer, v.precision), options_.bytes_per_s);
  }

 private:
  static constexpr Nanoseconds not_begun = -1;
  struct Pending {
    Copy copy;
    Nanoseconds from, landed;  ///< may begin; lands
  };
  struct Reached {
    Fence fence;
    Nanoseconds at;
  };

  void log(const Span& span) {
    if (options_.log && span.end_ns > span.begin_ns) spans_.push_back(span);
  }

  Nanoseconds reached(Fence fence) const noexcept {
    for (auto f = fences_.rbegin(); f != fences_.rend(); ++f) {
      if (f->fence == fence) return f->at;
    }
    return 0;  // reached before now
  }

  void move(const Copy& copy) const {
    const HeldBytes held = memory_->source(copy.what);
    if (memory_->borrows()) {
      memory_->borrow(copy.slot, held);
    } else {
      memory_->write(copy.slot, 0, held.view);
    }
  }

  /// Puts a copy on the link; returns when it lands.
  Nanoseconds carry(const Copy& copy, Nanoseconds start) noexcept {
    const Nanoseconds ns = copy_ns(copy.what);
    link_free_ = start + ns;
    busy_ns_ += ns;
    bytes_copied_ += model_.bytes(copy.what.id.layer, copy.what.precision);
    log({Lane::link, copy.demand ? "demand" : "prefetch", start, link_free_, copy.what, true, copy.ticket});
    try {
      if (memory_ != nullptr) move(copy);
    } catch (const std::exception& e) {
      failed_ = e.what();
    }
    return link_free_;
  }

  /// Starts the queued prefetches that could begin before `time`.
  void begin_prefetches(Nanoseconds time) noexcept {
    for (Pending& p : prefetch_) {
      if (p.landed != not_begun) continue;
      const Nanoseconds start = std::max(link_free_, p.from);
      if (start >= time) return;
      p.landed = carry(p.copy, start);
    }
  }

  /// An earlier copy into this slot has begun and not landed: its bytes are still coming.
  bool writing(std::uint32_t slot) const noexcept {
    auto is = [&](const Pending& p) { return p.copy.slot == slot && p.landed > now_; };
    return std::any_of(demand_.begin(), demand_.end(), is) || std::any_of(prefetch_.begin(), prefetch_.end(), is);
  }

  Nanoseconds landing(Ticket ticket) {
    detail::check_submitted(ticket, is_prefetch(ticket) ? last_prefetch_ : last_demand_);
    for (const Pending& p : demand_) {
      if (p.copy.ticket == ticket) return p.landed;
    }
    if (!is_prefetch(ticket)) return 0;  // landed before now
    for (Pending& p : prefetch_) {
      if (p.copy.ticket > ticket) break;
      if (p.landed == not_begun) p.landed = carry(p.copy, std::max(link_free_, p.from));
      if (p.copy.ticket == ticket) return p.landed;
    }
    return 0;  // landed before now
  }

  ModelShape model_;
  Options options_;
  SlotMemory* memory_;
  std::deque<Pending> demand_, prefetch_;
  std::deque<Reached> fences_;
  std::vector<Span> spans_;
  Ticket last_demand_ = Ticket::none, last_prefetch_ = Ticket::none, demand_landed_ = Ticket::none;
  Nanoseconds now_ = 0, device_free_ = 0, host_free_ = 0, link_free_ = 0;
  Nanoseconds device_ns_ = 0, host_ns_ = 0, stall_ns_ = 0, busy_ns_ = 0;
  std::uint64_t bytes_copied_ = 0;
  std::string failed_;  ///< why the bytes of a copy could not be had
};

static_assert(Link<VirtualClock>);

}  // namespace ferry::inline FERRY_ABI
