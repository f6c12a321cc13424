/// @file
/// A link made of a real thread: device memory is an arena of its own, bandwidth a throttle.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ferry/concepts.hpp"
#include "ferry/detail/tickets.hpp"
#include "ferry/error.hpp"
#include "ferry/slot_memory.hpp"
#include "ferry/timeline.hpp"

namespace ferry::inline FERRY_ABI {

/// Copies run on one thread beside the caller's computation, chunk by chunk, no faster than the throttle. With
/// `prefetch_chunk_bytes` demand copies go ahead of a prefetch that has begun, between two of its chunks.
///
/// The device is the caller's own thread: it has finished a task when it calls `done`, so a fence is reached
/// when it is named. Memory of a landed copy is visible to the caller after `seen` or `wait`. Where slots borrow, a copy only
/// sets a pointer.
/// Needs the platform's thread library (CMake: Threads::Threads).
class HostThread {
 public:
  /// How fast the link is, and what it logs.
  struct Options {
    std::uint64_t bytes_per_s = 0;          ///< 0: as fast as memory copies
    Nanoseconds latency_ns = 0;             ///< added to each copy
    bool log = false;                       ///< keep every span for a timeline
    std::uint32_t chunk_bytes = 1U << 20U;  ///< copied in one go; the throttle works between them
    /// How long the thread looks for the next copy before it sleeps, after the last call that brought one or named a
    /// fence. Waking a sleeping thread costs the caller more than deciding does: several microseconds a copy.
    Nanoseconds linger_ns = 0;
    std::uint32_t prefetch_chunk_bytes = 0;  ///< after each so many, demand copies may overtake a prefetch; 0: never
  };

  /// Starts the thread. The memory outlives it.
  HostThread(SlotMemory& memory, const Options& options) : memory_(memory), options_(options) {
    if (options.chunk_bytes == 0) detail::fail<ConfigError>("host thread link: chunk_bytes must be positive");
    constexpr Nanoseconds hour = 3'600'000'000'000;
    if (options.latency_ns < 0 || options.latency_ns > hour || options.linger_ns < 0 || options.linger_ns > hour) {
      detail::fail<ConfigError>("host thread link: latency_ns and linger_ns must be 0 to an hour");
    }
    if (options.bytes_per_s > 0 && memory.borrows()) {
      detail::fail<ConfigError>("host thread link: bytes_per_s slows copies down, but slots that borrow need none");
    }
    thread_ = std::thread([this] { work(); });
  }
  ~HostThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    calls_.fetch_add(1, std::memory_order_seq_cst);
    wake_.notify_all();
    thread_.join();
  }
  HostThread(const HostThread&) = delete;
  HostThread& operator=(const HostThread&) = delete;

  // Link

  void submit(const Copy& copy) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (!writes(copy.slot)) memory_.poison(copy.slot);
      (copy.demand ? demand_ : prefetch_).push_back(copy);
      if (detail::note_submitted(copy.ticket, copy.demand ? last_demand_ : last_prefetch_, failed_)) shared_ = true;
    }
    call();
  }

  void drop(Ticket ticket) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(prefetch_, [&](const Copy& c) { return c.ticket == ticket; });
    if (overtaken_ && overtaken_->copy.ticket == ticket) overtaken_.reset();
    dropped_ = dropped_ || (busy_ && current_.ticket == ticket && options_.prefetch_chunk_bytes > 0);
  }

  Seen seen() noexcept {
    const std::lock_guard lock(mutex_);
    if (shared_) return {};  // tickets of the one pipeline tell nothing of the other's
    Seen s{demand_landed_, last_prefetch_, last_prefetch_};
    if (!prefetch_.empty()) s.prefetch_begun = s.prefetch_landed = detail::ticket_before(prefetch_.front().ticket);
    if (overtaken_) s.prefetch_landed = detail::ticket_before(overtaken_->copy.ticket);
    if (!busy_) return s;
    if (!current_.demand && !dropped_) s.prefetch_landed = detail::ticket_before(current_.ticket);
    s.link_ns = times_.left(current_.what.precision, begun_, now());
    if (may_be_overtaken()) s.chunk_ns = chunk_time();
    return s;
  }

  void fence(Fence fence) noexcept {
    bool queued = false;
    {
      const std::lock_guard lock(mutex_);
      reached_ = fence;
      queued = !demand_.empty() || !prefetch_.empty();
    }
    if (queued) call();  // for nothing it would take longer than a small expert
  }

  /// Blocks until that copy has landed. Throws LinkError if it never will.
  void wait(Ticket ticket) {
    std::unique_lock lock(mutex_);
    detail::check_submitted(ticket, is_prefetch(ticket) ? last_prefetch_ : last_demand_);
    if (is_prefetch(ticket)) {  // nothing overtakes it any more
      waited_ = std::max(waited_, ticket);
      if (overtaken_) call();
    }
    landed_.wait(lock, [&] {
      if (!failed_.empty()) return true;
      if (!is_prefetch(ticket)) return demand_landed_ >= ticket;
      if ((busy_ && current_.ticket == ticket) || (overtaken_ && overtaken_->copy.ticket == ticket)) return false;
      return prefetch_.empty() || prefetch_.front().ticket > ticket;
    });
    if (!failed_.empty()) detail::fail<LinkError>("a copy failed: " + failed_);
  }

  /// Blocks until nothing is queued or on its way.
  void drain() {
    std::unique_lock lock(mutex_);
    landed_.wait(lock,
                 [&] { return !failed_.empty() || (!busy_ && !overtaken_ && demand_.empty() && prefetch_.empty()); });
    if (!failed_.empty()) detail::fail<LinkError>("a copy failed: " + failed_);
  }

  /// How long copies have been on the link.
  [[nodiscard]] Nanoseconds busy_ns() const {
    const std::lock_guard lock(mutex_);
    return busy_ns_;
  }
  /// Bytes of the copies that have landed.
  [[nodiscard]] std::uint64_t bytes_copied() const {
    const std::lock_guard lock(mutex_);
    return bytes_copied_;
  }
  /// The throttle, or without one the fastest copy so far: no copy is faster.
  [[nodiscard]] double peak_bytes_per_s() const {
    const std::lock_guard lock(mutex_);
    return peak();
  }
  /// Of all copies so far, if they are logged.
  [[nodiscard]] std::vector<Span> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

  /// The clock of `spans`.
  static Nanoseconds now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// A prefetch that demand copies have overtaken.
  struct Overtaken {
    Copy copy;
    HeldBytes bytes;
    std::uint32_t crossed;
    Nanoseconds took;
  };

  bool ready(const std::deque<Copy>& queue) const { return !queue.empty() && queue.front().after <= reached_; }

  /// There may be something to do.
  void call() noexcept {
    calls_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeps_.load(std::memory_order_seq_cst)) wake_.notify_one();
  }

  /// A demand copy whose fence is not reached holds prefetches back too: nothing may overtake it, but what has begun.
  bool has_work() const { return stop_ || overtaken_ || ready(demand_) || (demand_.empty() && ready(prefetch_)); }
  /// Demand copies go before the prefetch that has begun, unless it is waited for, or they go to its slot.
  bool goes_ahead(const Copy& prefetch) const {
    return ready(demand_) && prefetch.ticket > waited_ && demand_.front().slot != prefetch.slot;
  }
  /// A copy into this slot has begun.
  bool writes(std::uint32_t slot) const {
    return (busy_ && current_.slot == slot) || (overtaken_ && overtaken_->copy.slot == slot);
  }
  bool may_be_overtaken() const {
    return options_.prefetch_chunk_bytes > 0 && !current_.demand && current_.ticket > waited_;
  }
  double peak() const {
    return options_.bytes_per_s > 0 ? static_cast<double>(options_.bytes_per_s) : peak_bytes_per_s_;
  }
  /// At most, of a chunk of a prefetch; 1 where nothing has landed yet.
  Nanoseconds chunk_time() const {
    const double ns = peak() > 0 ? 1e9 * options_.prefetch_chunk_bytes / peak() : 0;
    return std::max<Nanoseconds>(1, static_cast<Nanoseconds>(ns));
  }

  /// Returns with something to do, and the lock held.
  void await_work(std::unique_lock<std::mutex>& lock) {
    auto until = Clock::now() + std::chrono::nanoseconds(options_.linger_ns);
    while (!has_work() && options_.linger_ns > 0) {
      const std::uint64_t before = calls_.load(std::memory_order_seq_cst);
      lock.unlock();
      while (calls_.load(std::memory_order_seq_cst) == before && Clock::now() < until) std::this_thread::yield();
      lock.lock();
      if (calls_.load(std::memory_order_seq_cst) == before) break;
      until = Clock::now() + std::chrono::nanoseconds(options_.linger_ns);
    }
    // Who calls now sees that it must wake, or has called before the queues are looked at here.
    sleeps_.store(true, std::memory_order_seq_cst);
    wake_.wait(lock, [this] { return has_work(); });
    sleeps_.store(false, std::memory_order_seq_cst);
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      await_work(lock);
      if (stop_) return;
      Overtaken at = take_next();
      current_ = at.copy;
      busy_ = true;
      dropped_ = false;
      const Nanoseconds begin = now();
      begun_ = begin - at.took;
      lock.unlock();
      bool stopped = false;
      const std::uint32_t before = at.crossed;
      const std::string failed = detail::failure_of([&] { stopped = carry(at); });
      const Nanoseconds end = now();
      lock.lock();
      if (!failed.empty()) {  // nothing can be trusted after it: the link stops, and those who wait are told
        failed_ = failed;     // it stays busy: `seen` must not count what failed as landed
        landed_.notify_all();
        return;
      }
      busy_ = false;
      at.took += end - begin;
      busy_ns_ += end - begin;
      bytes_copied_ += at.crossed - before;
      if (options_.log) {
        spans_.push_back(
            {Lane::link, current_.demand ? "demand" : "prefetch", begin, end, current_.what, true, current_.ticket});
      }
      if (stopped) {
        if (!dropped_) overtaken_ = std::move(at);
      } else {
        times_.note(current_.what.precision, at.took);
        peak_bytes_per_s_ = std::max(peak_bytes_per_s_, static_cast<double>(at.crossed) * 1e9 /
                                                            static_cast<double>(std::max<Nanoseconds>(at.took, 1)));
        if (current_.demand) demand_landed_ = current_.ticket;
      }
      landed_.notify_all();
    }
  }

  /// What was overtaken goes on before any other prefetch.
  Overtaken take_next() {
    if (overtaken_ && !goes_ahead(overtaken_->copy)) return *std::exchange(overtaken_, std::nullopt);
    std::deque<Copy>& queue = demand_.empty() ? prefetch_ : demand_;
    const Copy copy = queue.front();
    queue.pop_front();
    return {copy, {}, 0, 0};
  }

  /// True if it has stopped between two chunks.
  bool carry(Overtaken& at) {
    const Copy& copy = at.copy;
    const auto start = Clock::now() + std::chrono::nanoseconds(options_.latency_ns);
    if (at.crossed == 0) at.bytes = memory_.source(copy.what);
    const View<const std::byte> bytes = at.bytes.view;
    if (memory_.borrows()) {
      memory_.borrow(copy.slot, at.bytes);
      at.crossed = bytes.size;
      at.bytes = {};
      sleep_until(start);
      return false;
    }
    const bool cut = !copy.demand && options_.prefetch_chunk_bytes > 0;
    const std::uint32_t piece = cut ? options_.prefetch_chunk_bytes : options_.chunk_bytes, first = at.crossed;
    while (at.crossed < bytes.size) {
      if (cut && at.crossed > first && stops()) return true;
      const std::uint32_t n = std::min(piece, bytes.size - at.crossed);
      memory_.write(copy.slot, at.crossed, bytes.part(at.crossed, n));
      at.crossed += n;
      if (options_.bytes_per_s > 0) {
        const double s = static_cast<double>(at.crossed - first) / static_cast<double>(options_.bytes_per_s);
        sleep_until(start + std::chrono::nanoseconds(static_cast<Nanoseconds>(s * 1e9)));
      }
    }
    if (options_.bytes_per_s == 0) sleep_until(start);
    at.bytes = {};
    return false;
  }
  /// Whether the prefetch on the link has to end behind a chunk.
  bool stops() const {
    const std::lock_guard lock(mutex_);
    return stop_ || dropped_ || goes_ahead(current_);
  }

  /// Sleeps most of the time and spins the rest: a timer alone is some 60 us late, longer than a small copy.
  static void sleep_until(Clock::time_point deadline) {
    constexpr auto late = std::chrono::microseconds(100);
    if (deadline - Clock::now() > late) std::this_thread::sleep_until(deadline - late);
    while (Clock::now() < deadline) std::this_thread::yield();
  }

  SlotMemory& memory_;
  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, landed_;
  std::deque<Copy> demand_, prefetch_;
  std::optional<Overtaken> overtaken_;
  Copy current_;
  Nanoseconds begun_ = 0;  ///< when it began
  detail::CopyTimes times_;
  std::atomic<std::uint64_t> calls_{0};  ///< that may have brought something to do
  std::atomic<bool> sleeps_{false};      ///< the thread has to be woken
  bool busy_ = false, stop_ = false;
  bool shared_ = false;   ///< another pipeline has submitted to it
  bool dropped_ = false;  ///< what is on the link ends behind its chunk
  std::string failed_;    ///< why the link stopped
  Ticket last_demand_ = Ticket::none, last_prefetch_ = Ticket::none, demand_landed_ = Ticket::none;
  Ticket waited_ = Ticket::none;  ///< no prefetch up to this one is overtaken any more
  Fence reached_ = Fence::none;
  Nanoseconds busy_ns_ = 0;
  std::uint64_t bytes_copied_ = 0;
  double peak_bytes_per_s_ = 0;
  std::vector<Span> spans_;
  std::thread thread_;
};

static_assert(Link<HostThread>);

}  // namespace ferry::inline FERRY_ABI
