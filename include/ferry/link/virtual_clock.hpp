/// @file
/// A link that only computes when things would happen.
#pragma once
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "ferry/concepts.hpp"
#include "ferry/detail/shared_progress.hpp"
#include "ferry/detail/tickets.hpp"
#include "ferry/detail/waiting_copies.hpp"
#include "ferry/error.hpp"
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
///  - A copy takes `latency_ns` plus its bytes over the bandwidth (rounded up), one at a time. With `prefetch_chunk_bytes`, a
///    demand copy that may begin goes ahead of a prefetch once the chunk under way has crossed, unless somebody waits for that
///    prefetch; what is left of it takes another `latency_ns`.
///  - Demand copies go in order of submission, before every prefetch that has not begun. A demand copy submitted
///    at the instant at which a queued prefetch could begin goes first.
///  - A copy begins when the link is free, it has been submitted, and the fence it follows is reached.
///  - Copies and experts that the host computes read the same memory: while both are at it, each goes on at the slower
///    pace of its SharedTime.
///
/// No work is less than 0, or takes 2^42 ns (73 minutes) or more. Time ends some 292 years after its beginning: what would come
/// later all happens then.
///
/// With a SlotMemory the bytes are moved too, in the link's order, so that an engine can compute with them.
class VirtualClock {
 public:
  /// How fast the link is, and what is logged.
  struct Options {
    std::uint64_t bytes_per_s = 16'000'000'000;  ///< of the link
    Nanoseconds latency_ns = 0;                  ///< added to each copy
    bool log = false;                            ///< keep every span for a timeline
    std::uint64_t bytes_per_s_beside_host = 0;   ///< while the host computes an expert; 0: as without
    std::uint64_t prefetch_chunk_bytes = 0;  ///< after each so many, demand copies may overtake a prefetch; 0: never
  };

  /// The link of these costs.
  static Options options(const Costs& costs, bool log) noexcept {
    return {costs.link_bytes_per_s, costs.link_latency_ns, log, costs.link_bytes_per_s_beside_host,
            costs.prefetch_chunk_bytes};
  }

  /// With `memory` the bytes really move when a copy lands.
  VirtualClock(const ModelShape& model, const Options& options, SlotMemory* memory = nullptr)
      : model_(model), options_(options), memory_(memory) {
    if (options.bytes_per_s == 0 || options.bytes_per_s > fastest || options.bytes_per_s_beside_host > fastest ||
        options.latency_ns < 0) {
      detail::fail<ConfigError>("virtual clock: bytes_per_s must be 1 to 10^15 and latency_ns not negative");
    }
    for (const ExpertBytes& sizes : model.expert_bytes) {
      for (const std::uint64_t bytes : sizes) {
        if (bytes == 0 || copy_time(bytes).beside <= longest_work) continue;  // 0: not stored
        detail::fail<ConfigError>("virtual clock: a copy of " + std::to_string(bytes) +
                                  " bytes takes 2^42 ns (73 minutes) or more, expected a faster link");
      }
    }
  }

  // Link

  void submit(const Copy& copy) noexcept {
    advance(now_);
    if (memory_ != nullptr && !writing(copy.slot)) memory_->poison(copy.slot);
    waiting_.push({copy, std::max(now_, reached(copy.after)), bytes_of(copy.what)});
    if (detail::note_submitted(copy.ticket, copy.demand ? last_demand_ : last_prefetch_, failed_)) told_ = {};
  }

  void drop(Ticket ticket) noexcept {
    advance(now_);
    waiting_.drop(ticket);
    if (!link_.at_work || begun_.back().copy.ticket != ticket) return;
    begun_.back().dropped = options_.prefetch_chunk_bytes > 0;
    stop_at_chunk(now_);
  }

  Seen seen() noexcept {
    advance(now_);
    if (!failed_.empty()) return told_;  // one of those that seem to land has no bytes
    for (; !begun_.empty() && begun_.front().landed <= now_; begun_.pop_front()) {
      if (begun_.front().copy.demand) demand_landed_ = begun_.front().copy.ticket;
    }
    Seen s{demand_landed_, last_prefetch_, last_prefetch_, link_.at_work ? link_.end() - now_ : 0, 0};
    if (may_be_overtaken()) s.chunk_ns = std::max<Nanoseconds>(chunk_end(now_).at - now_, 1);
    if (const SimulatedCopy* next = waiting_.prefetch())
      s.prefetch_begun = s.prefetch_landed = detail::ticket_before(next->copy.ticket);
    if (const SimulatedCopy* rest = waiting_.overtaken()) s.prefetch_landed = detail::ticket_before(rest->copy.ticket);
    for (const SimulatedCopy& p : begun_) {
      if (p.copy.demand || p.dropped) continue;
      s.prefetch_landed = detail::ticket_before(p.copy.ticket);
      break;
    }
    return told_ = s;
  }

  void fence(Fence fence) noexcept {
    while (!fences_.empty() && fences_.front().at <= now_) fences_.pop_front();
    fences_.push_back({fence, std::max(device_free_, now_)});
  }

  /// The device's next work begins no earlier than that copy's landing.
  void wait(Ticket ticket) {
    const Nanoseconds from = std::max(device_free_, now_);
    const Nanoseconds landed = landing(ticket);
    if (!failed_.empty()) detail::fail<LinkError>("a copy failed: " + failed_);
    if (landed <= from) return;
    stall_ns_ += landed - from;  // stalls do not overlap, so their sum is no more than there is time
    log({Lane::device, "wait", from, landed, {}, false, Ticket::none});
    device_free_ = landed;
  }

  // Time

  /// Queues device work of this length; `what`: the expert that it is about, for the timeline. Throws UsageError for a
  /// length that no work has.
  void device(Nanoseconds ns, const char* name = "compute", const Variant* what = nullptr) {
    check_work("device", ns);
    const Nanoseconds from = std::max(device_free_, now_);
    device_free_ = Progress::later(from, ns);
    device_ns_ = detail::sum(device_ns_, ns);
    log({Lane::device, name, from, device_free_, what == nullptr ? Variant{} : *what, what != nullptr, Ticket::none});
  }
  /// Queues work on the host: an expert, whose weights it reads. Throws UsageError for a length that no work has.
  void host(SharedTime takes, const Variant& what) {
    check_work("host", takes.alone);
    check_work("host", takes.beside);
    host_queue_.push_back({now_, takes, "expert", what, true});
  }
  /// Queues a layer's share of the host: the activations of its rows cross to it, it computes the tasks, and the results
  /// cross back, as one hidden state a row. `rows`: of the step.
  void host(View<const Task> tasks, const Costs& costs, std::uint32_t rows) {
    if (tasks.size == 0) return;
    const std::uint32_t layer = tasks[0].what.id.layer;
    std::uint32_t computed = 0;
    for (const Task& t : tasks) computed += t.rows;
    const Nanoseconds way = costs.activations(layer, std::min(rows, computed));
    check_work("host", way);
    host_queue_.push_back({now_, {way, way}, "activations", {}, false});
    for (const Task& t : tasks) {
      host(costs.host_time(layer, model_.bytes(layer, t.what.precision), t.rows), t.what);
    }
    host_queue_.push_back({now_, {way, way}, "results", {}, false});
  }
  /// The caller waits for all queued device work.
  void sync_device() noexcept { now_ = std::max(now_, device_free_); }
  /// The caller waits for all queued device and host work. Returns how long it waits for the host alone.
  Nanoseconds sync() noexcept {
    while (!host_queue_.empty()) step(never);
    const Nanoseconds device = device_free();
    now_ = std::max(device, host_free_);
    return now_ - device;
  }
  /// The caller waits for every copy that was submitted.
  void drain() noexcept {
    while (link_.at_work || !waiting_.empty()) step(never);
    now_ = std::max(now_, link_free_);
  }

  /// The time on the host's side.
  [[nodiscard]] Nanoseconds now() const noexcept { return now_; }
  /// When the device will have done what is queued.
  [[nodiscard]] Nanoseconds device_free() const noexcept { return std::max(device_free_, now_); }
  /// How long the device has worked, at most until `device_free`.
  [[nodiscard]] Nanoseconds device_ns() const noexcept { return device_ns_; }
  /// How long the host has computed experts until the last `sync`.
  [[nodiscard]] Nanoseconds host_ns() const noexcept { return host_ns_; }
  /// How long the device has waited for copies.
  [[nodiscard]] Nanoseconds stall_ns() const noexcept { return stall_ns_; }
  /// How long copies have been on the link; one counts when it is put there, and again when it lands for what the host
  /// has slowed it.
  [[nodiscard]] Nanoseconds busy_ns() const noexcept { return busy_ns_; }
  /// Bytes of the copies that were put on the link.
  [[nodiscard]] std::uint64_t bytes_copied() const noexcept { return bytes_copied_; }
  /// As fast as the link is without latency.
  [[nodiscard]] double peak_bytes_per_s() const noexcept { return static_cast<double>(options_.bytes_per_s); }
  /// Of all that was done so far, if it is logged.
  [[nodiscard]] const std::vector<Span>& spans() const noexcept { return spans_; }

  /// Of a copy that nothing slows.
  [[nodiscard]] Nanoseconds copy_ns(Variant v) const noexcept { return copy_time(bytes_of(v)).alone; }

 private:
  using SimulatedCopy = detail::SimulatedCopy;
  using Progress = detail::SharedProgress;
  static constexpr Nanoseconds never = Progress::never, longest_work = Progress::longest_work;
  static constexpr std::uint64_t fastest = 1'000'000'000'000'000;
  static void check_work(const char* call, Nanoseconds ns) {
    if (ns >= 0 && ns <= longest_work) return;
    detail::fail<UsageError>(std::string("virtual clock, ") + call + ": work of " + std::to_string(ns) +
                             " ns, expected 0 to less than 2^42 (73 minutes)");
  }

  struct Reached {
    Fence fence;
    Nanoseconds at;
  };
  struct HostWork {
    Nanoseconds from;  ///< when it was queued
    SharedTime takes;
    const char* name;
    Variant what;
    bool expert;
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

  std::uint64_t bytes_of(Variant v) const noexcept { return model_.bytes(v.id.layer, v.precision); }
  SharedTime copy_time(std::uint64_t bytes) const noexcept {
    const auto at = [&](std::uint64_t speed) { return detail::sum(options_.latency_ns, duration_ns(bytes, speed)); };
    const Nanoseconds alone = at(options_.bytes_per_s);
    return {alone, std::max(alone, at(options_.bytes_per_s_beside_host))};
  }

  void move(const Copy& copy) const {
    const HeldBytes held = memory_->source(copy.what);
    if (memory_->borrows()) {
      memory_->borrow(copy.slot, held);
    } else {
      memory_->write(copy.slot, 0, held.view);
    }
  }

  // What happens on link and host, in the order of time. It may run ahead of `now` where the caller waits for it.

  /// All that ends up to `time`, and all that begins before it.
  void advance(Nanoseconds time) noexcept {
    while (step(time)) {
    }
  }

  /// The next event, if it comes by then.
  bool step(Nanoseconds time) noexcept {
    const Nanoseconds landing = link_.end(), computed = host_.end(), work = next_host_work();
    const Nanoseconds copy = link_.at_work ? next_overtaking() : next_copy();
    const Nanoseconds ends = std::min(landing, computed), begins = std::min(copy, work);
    if (ends == never && begins == never) return false;
    if (ends <= begins) {
      if (ends > time) return false;
      landing <= computed ? end_copy(landing) : end_host_work(computed);
    } else {
      if (begins >= time) return false;
      if (copy > work) {
        begin_host_work(work);
      } else {
        link_.at_work ? stop_at_chunk(copy) : begin_copy(copy);
      }
    }
    return true;
  }

  /// When the next copy begins, or goes on.
  Nanoseconds next_copy() const noexcept {
    const SimulatedCopy* const next = waiting_.next(link_free_);
    return next == nullptr ? never : std::max(link_free_, next->from);
  }
  bool may_be_overtaken() const noexcept {
    return options_.prefetch_chunk_bytes > 0 && link_.at_work && !begun_.back().copy.demand &&
           !begun_.back().waited_for && link_.stop == 0 && link_.left > 0;
  }
  /// When a demand copy asks the prefetch on the link to let it go ahead.
  Nanoseconds next_overtaking() const noexcept {
    const SimulatedCopy* const demand = waiting_.demand();
    if (demand == nullptr || !may_be_overtaken() || demand->copy.slot == begun_.back().copy.slot) return never;
    const Nanoseconds from = std::max(link_.since, demand->from);
    return chunk_end(from).left == 0 ? never : from;
  }
  struct ChunkEnd {
    std::uint64_t left;    ///< bytes behind it
    Nanoseconds at, rest;  ///< of the link's time for the whole, behind it
  };
  /// Of the chunk that is under way at that time.
  ChunkEnd chunk_end(Nanoseconds time) const noexcept {
    const std::uint64_t whole = begun_.back().left, chunk = std::min(whole, options_.prefetch_chunk_bytes);
    const Nanoseconds left = link_.left_at(std::max(time, link_.since));  // it may have been looked at ahead of now
    const Nanoseconds crossed = link_.takes.alone - left - options_.latency_ns;
    const Nanoseconds each = duration_ns(chunk, options_.bytes_per_s);
    const std::uint64_t bytes = chunk * (crossed <= 0 ? 1 : static_cast<std::uint64_t>((crossed + each - 1) / each));
    const Nanoseconds rest = bytes >= whole ? 0 : link_.takes.alone - copy_time(bytes).alone;
    if (rest <= 0) return {0, link_.end(0), 0};
    return {whole - bytes, link_.end(rest), rest};
  }
  void stop_at_chunk(Nanoseconds time) noexcept {
    if (options_.prefetch_chunk_bytes == 0 || link_.stop > 0) return;
    const ChunkEnd end = chunk_end(time);
    link_.stop = end.rest;
    rest_bytes_ = end.left;
  }
  Nanoseconds next_host_work() const noexcept {
    if (host_.at_work || host_queue_.empty()) return never;
    return std::max(host_free_, host_queue_.front().from);
  }

  void begin_copy(Nanoseconds time) noexcept {
    begun_.push_back(waiting_.take(link_free_));
    const SimulatedCopy& p = begun_.back();
    link_.start(copy_time(p.left), time);
    pace(time);
    busy_ns_ = detail::sum(busy_ns_, link_.takes.alone);
    bytes_copied_ += p.left;
    if (memory_ == nullptr || p.left < bytes_of(p.copy.what)) return;  // they moved when it began
    if (std::string failed = detail::failure_of([&] { move(p.copy); }); !failed.empty()) failed_ = std::move(failed);
  }
  void end_copy(Nanoseconds time) noexcept {
    SimulatedCopy& p = begun_.back();
    link_free_ = time;
    busy_ns_ += time - link_.begin - link_.takes.alone;
    log({Lane::link, p.copy.demand ? "demand" : "prefetch", link_.begin, time, p.copy.what, true, p.copy.ticket});
    link_.at_work = false;
    if (link_.stop > 0) bytes_copied_ -= rest_bytes_;
    if (link_.stop > 0 && !p.dropped) {
      p.left = rest_bytes_;
      waiting_.overtake(p);
      begun_.pop_back();
    } else {
      p.landed = time;
    }
    pace(time);
  }
  void begin_host_work(Nanoseconds time) noexcept {
    host_.start(host_queue_.front().takes, time);
    pace(time);
  }
  void end_host_work(Nanoseconds time) noexcept {
    const HostWork& w = host_queue_.front();
    if (w.expert) host_ns_ += time - host_.begin;
    log({Lane::host, w.name, host_.begin, time, w.what, w.expert, Ticket::none});
    host_queue_.pop_front();
    host_free_ = time;
    host_.at_work = false;
    pace(time);
  }
  void pace(Nanoseconds time) noexcept {
    const bool both = link_.at_work && host_.at_work && host_queue_.front().expert;
    link_.pace(both, time);
    host_.pace(both, time);
  }

  /// An earlier copy into this slot has begun and not landed: its bytes are still coming.
  bool writing(std::uint32_t slot) const noexcept {
    return !begun_.empty() && begun_.back().landed > now_ && begun_.back().copy.slot == slot;
  }

  Nanoseconds landing(Ticket ticket) {
    detail::check_submitted(ticket, is_prefetch(ticket) ? last_prefetch_ : last_demand_);
    advance(now_);
    const auto is = [&](const SimulatedCopy& c) { return c.copy.ticket == ticket; };
    if (link_.at_work && is(begun_.back()) && !begun_.back().dropped) {
      begun_.back().waited_for = true;
      link_.stop = 0;
    }
    while (waiting_.await(ticket)) step(never);
    const auto found = std::find_if(begun_.begin(), begun_.end(), is);
    if (found == begun_.end()) return 0;  // landed before now
    const SimulatedCopy& p = *found;      // stays, while others are put behind it
    while (p.landed == never) step(never);
    return p.landed;
  }

  ModelShape model_;
  Options options_;
  SlotMemory* memory_;
  detail::WaitingCopies waiting_;
  std::uint64_t rest_bytes_ = 0;     ///< of the copy on the link, if it is to stop
  std::deque<SimulatedCopy> begun_;  ///< and not seen to have landed, in the link's order
  std::deque<HostWork> host_queue_;  ///< the first may have begun
  std::deque<Reached> fences_;
  std::vector<Span> spans_;
  Progress link_, host_;
  Ticket last_demand_ = Ticket::none, last_prefetch_ = Ticket::none, demand_landed_ = Ticket::none;
  Nanoseconds now_ = 0, device_free_ = 0, host_free_ = 0, link_free_ = 0;
  Nanoseconds device_ns_ = 0, host_ns_ = 0, stall_ns_ = 0, busy_ns_ = 0;
  std::uint64_t bytes_copied_ = 0;
  std::string failed_;  ///< why the bytes of a copy could not be had
  Seen told_;           ///< by the last `seen`
};

static_assert(Link<VirtualClock>);

}  // namespace ferry::inline FERRY_ABI
