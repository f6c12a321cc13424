/// @file
/// A link over CUDA: experts move from host memory into slots on the device, on a stream of their own.
///
/// Only host functions of the runtime are used, so that a host compiler suffices (CMake: CUDA::cudart,
/// Threads::Threads). Nothing is newer than CUDA 11.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/concepts.hpp"
#include "ferry/detail/tickets.hpp"
#include "ferry/error.hpp"
#include "ferry/slot_memory.hpp"
#include "ferry/timeline.hpp"

namespace ferry::inline FERRY_ABI {

namespace part {

inline std::string cuda_failure(cudaError_t error, const std::string& call) {
  return call + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")";
}

/// Whether a query says that something has not happened yet. CUDA also keeps that as the thread's last error, where
/// somebody else would find it.
inline bool not_ready(cudaError_t state) {
  if (state != cudaErrorNotReady) return false;
  static_cast<void>(cudaGetLastError());
  return true;
}

/// Throws LinkError with the call, and what CUDA says of it.
inline void check_cuda(cudaError_t error, const std::string& call) {
  if (error != cudaSuccess) detail::fail<LinkError>(cuda_failure(error, call));
}

}  // namespace part

/// The slots on a device, and where the experts' bytes are to be had: what SlotMemory is for host memory.
class CudaSlots {
 public:
  /// How the bytes cross.
  struct Options {
    /// The source's bytes all lie in page-locked memory (cudaMallocHost, cudaHostRegister; neighbours in one piece of
    /// it), from where the device copies them itself. Otherwise a thread of the link stages them, and may wait for a disk.
    bool pinned = true;
    /// Fill a slot with NaN before an expert comes into it.
    bool poison = SlotMemory::poison_by_default;
  };

  /// One block on the current device. Throws LinkError if there is no room, with what was asked for and what is free.
  CudaSlots(const Allotment& allotment, SlotMemory::Source source, const Options& options)
      : offsets_(allotment.offsets()), source_(std::move(source)), options_(options) {
    void* block = nullptr;
    const cudaError_t error = cudaMalloc(&block, offsets_.back() + 1);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // nothing is broken: a smaller budget may be tried
      std::size_t free = 0, total = 0;
      part::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      detail::fail<LinkError>("slots of " + std::to_string(offsets_.back()) + " bytes do not fit the device: " +
                              std::to_string(free) + " of its " + std::to_string(total) + " bytes are free");
    }
    part::check_cuda(error, "cudaMalloc of " + std::to_string(offsets_.back() + 1) + " bytes");
    bytes_.reset(static_cast<std::byte*>(block));
    part::check_cuda(cudaMemset(block, 0xff, offsets_.back()), "cudaMemset");
    part::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // streams do not wait for cudaMemset
  }

  /// On the device.
  [[nodiscard]] std::byte* slot(std::uint32_t s) const noexcept { return bytes_.get() + offsets_[s]; }
  /// Bytes of one slot.
  [[nodiscard]] std::uint64_t slot_bytes(std::uint32_t s) const noexcept { return offsets_[s + 1] - offsets_[s]; }
  /// How many slots there are.
  [[nodiscard]] std::uint32_t slots() const noexcept { return static_cast<std::uint32_t>(offsets_.size() - 1); }
  /// Device memory of all slots, in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return offsets_.back(); }
  /// The host's copy of a variant.
  [[nodiscard]] HeldBytes source(Variant v) const { return source_(v); }
  /// As they were given.
  [[nodiscard]] const Options& options() const noexcept { return options_; }

  /// The slot's expert has left, once `stream` gets there.
  void poison(std::uint32_t s, cudaStream_t stream) {
    if (!options_.poison) return;
    part::check_cuda(cudaMemsetAsync(slot(s), 0xff, slot_bytes(s), stream), "cudaMemsetAsync");
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { static_cast<void>(cudaFree(p)); }
  };
  std::vector<std::uint64_t> offsets_;
  std::unique_ptr<std::byte, Free> bytes_;
  SlotMemory::Source source_;
  Options options_;
};

/// Copies on a stream beside the device's computation.
///
/// A copy waits on the device for the event of its slot's last reader, and the computation waits on the device for the
/// copy that it needs and nothing else; the caller's thread waits for neither. A demand copy goes to the stream when it
/// is submitted; only the last of a few may stay until the next call of any kind, for a neighbour that can go with it in
/// one copy (next to it in host memory and on the device).
///
/// CUDA cannot take a copy back. So prefetches wait here, where they can be dropped, and every call but `drop` puts as many on
/// the stream as keep it busy for `ahead_bytes`. Prefetches can delay a demand copy by no more than those bytes and one
/// expert; with `prefetch_chunk_bytes`, by one chunk instead of an expert, since the rest of a prefetch waits here as well. A
/// prefetch does not go to the stream before its slot's last reader is done, because demand copies behind it would wait too.
///
/// With a source that is not pinned, a thread reads the bytes (from a disk, for instance) into page-locked buffers and
/// puts the copies on the stream; `wait` then blocks until the copy is there, not until it has landed.
///
/// An error of CUDA, or of the source, stops the link: nothing is copied any more, and `wait` and `drain` throw it.
/// Threads: all calls from one. Complexity of each: O(copies that landed or were put on the stream since the last one).
class CudaStream {
 public:
  /// How the link shares the stream, and what it logs.
  struct Options {
    /// The link puts prefetches on the stream while fewer bytes of them than this are on it. A good value is what the
    /// link carries between two calls, which lie some tenths of a layer's time apart.
    std::uint64_t ahead_bytes = std::uint64_t{16} << 20U;
    /// Prefetches from pinned memory go to the stream in pieces of so many bytes, between which demand copies overtake
    /// them; 0: as a whole.
    std::uint64_t prefetch_chunk_bytes = 0;
    std::uint32_t staging_buffers = 3;  ///< each for the largest slot; for sources that are not pinned
    bool log = false;                   ///< keep every span for a timeline
  };

  /// `slots` outlives the link. `compute`: the stream whose work reads the slots. Throws LinkError.
  CudaStream(CudaSlots& slots, cudaStream_t compute, const Options& options)
      : slots_(slots), compute_(compute), options_(options) {
    part::check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
    part::check_cuda(cudaStreamCreateWithFlags(&copies_.handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    base_ = take_event(timed_);
    throw_failure();
    part::check_cuda(cudaEventRecord(base_, copies_.handle), "cudaEventRecord");
    part::check_cuda(cudaEventSynchronize(base_), "cudaEventSynchronize");
    base_ns_ = now();
    if (slots.options().pinned) return;
    if (options.staging_buffers == 0) detail::fail<ConfigError>("CUDA link: staging_buffers must be positive");
    std::uint64_t largest = 1;
    for (std::uint32_t s = 0; s < slots.slots(); ++s) largest = std::max(largest, slots.slot_bytes(s));
    for (std::uint32_t i = 0; i < options.staging_buffers; ++i) {
      void* memory = nullptr;
      part::check_cuda(cudaMallocHost(&memory, largest), "cudaMallocHost of " + std::to_string(largest) + " bytes");
      buffers_.emplace_back(static_cast<std::byte*>(memory));
    }
    buffer_free_.resize(buffers_.size());
    thread_ = std::thread([this] { stage(); });
  }
  ~CudaStream() {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        stop_ = true;
      }
      wake_.notify_all();
      thread_.join();
    }
    static_cast<void>(cudaStreamSynchronize(copies_.handle));  // nothing writes to the slots after this
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Link

  void submit(const Copy& copy) noexcept {
    const std::lock_guard lock(mutex_);
    (copy.demand ? demand_ : prefetch_).push_back(copy);
    if (detail::note_submitted(copy.ticket, copy.demand ? last_demand_ : last_prefetch_, failed_)) told_ = {};
    wake_.notify_one();  // not at every call: there may be millions
    move_on(copy.demand ? Last::may_stay : Last::goes);
  }

  void drop(Ticket ticket) noexcept {
    const std::lock_guard lock(mutex_);
    if (crossed_ > 0 && prefetch_.front().ticket == ticket) crossed_ = 0;
    std::erase_if(prefetch_, [&](const Copy& c) { return c.ticket == ticket; });
  }

  Seen seen() noexcept {
    const std::lock_guard lock(mutex_);
    collect();
    move_on(Last::goes);
    if (!failed_.empty()) return told_;  // what has failed is in no queue any more, and has not landed
    Seen s{demand_landed_, last_prefetch_, last_prefetch_};
    if (!prefetch_.empty()) {
      s.prefetch_landed = detail::ticket_before(prefetch_.front().ticket);
      s.prefetch_begun = crossed_ > 0 ? prefetch_.front().ticket : s.prefetch_landed;
    }
    if (staging_ && !staging_->demand) s.prefetch_landed = detail::ticket_before(staging_->ticket);
    for (const Sent& sent : sent_) {  // few: the stream holds `ahead_bytes`
      if (sent.copies.front().demand) continue;
      s.prefetch_landed = detail::ticket_before(sent.copies.front().ticket);
      break;
    }
    if (!sent_.empty()) {
      const Sent& under_way = sent_.front();  // as if it had waited for nothing but the copy before it
      const Precision precision = under_way.copies.front().what.precision;
      const Nanoseconds begin = std::max(under_way.at_ns, free_ns_), before = time_of(precision, under_way.from);
      s.link_ns = times_.left(precision, begin - before, now(), under_way.copies.size());
      if (crossed_ > 0 && prefetch_.front().ticket > urgent_) {
        s.chunk_ns = std::max<Nanoseconds>(1, time_of(prefetch_.front().what.precision, prefetch_bytes_));
      }
    }
    return told_ = s;
  }

  void fence(Fence fence) noexcept {
    const std::lock_guard lock(mutex_);
    if (!failed_.empty()) return;
    static_cast<void>(reached(fence));  // forgets those that are
    cudaEvent_t event = take_event(untimed_);
    if (!good(cudaEventRecord(event, compute_), "cudaEventRecord")) return;
    fences_.push_back({fence, event});
    named_ = fence;
    if (!demand_.empty() || !prefetch_.empty()) wake_.notify_one();
    move_on(Last::goes);
  }

  /// Lets the computation wait, from its next work on, until that copy has landed. Throws LinkError if it never will.
  void wait(Ticket ticket) {
    std::unique_lock lock(mutex_);
    detail::check_submitted(ticket, is_prefetch(ticket) ? last_prefetch_ : last_demand_);
    if (is_prefetch(ticket)) urgent_ = std::max(urgent_, ticket);
    wake_.notify_one();
    move_on(Last::goes);
    on_stream_.wait(lock, [&] { return !failed_.empty() || !queued(ticket) || held_back(); });
    throw_failure();
    if (queued(ticket)) {
      detail::fail<LinkError>("wait for copy " + std::to_string(static_cast<std::uint64_t>(ticket)) +
                              " behind one that waits for a fence not named yet: call fence() first");
    }
    for (auto sent = sent_.rbegin(); sent != sent_.rend(); ++sent) {  // the last piece first
      for (const Copy& c : sent->copies) {
        if (c.ticket != ticket) continue;
        if (!good(cudaStreamWaitEvent(compute_, sent->end, 0), "cudaStreamWaitEvent")) throw_failure();
        return;
      }
    }
  }

  /// Blocks until nothing is queued or on its way. Throws LinkError if that never comes.
  void drain() {
    std::unique_lock lock(mutex_);
    urgent_ = last_prefetch_;
    wake_.notify_one();
    move_on(Last::goes);
    on_stream_.wait(
        lock, [&] { return !failed_.empty() || held_back() || (demand_.empty() && prefetch_.empty() && !staging_); });
    throw_failure();
    if (held_back()) detail::fail<LinkError>("a copy waits for a fence that was never named: call fence() first");
    if (!good(cudaStreamSynchronize(copies_.handle), "cudaStreamSynchronize")) throw_failure();
    collect();
    throw_failure();
  }

  /// What stopped the link; empty: nothing.
  [[nodiscard]] std::string failed() const {
    const std::lock_guard lock(mutex_);
    return failed_;
  }
  /// How long copies have been on the link. Taking a copy's time holds the stream up: without a log, of copies of less than
  /// 4 MiB one in eleven is timed, and the others count as bytes at its speed.
  [[nodiscard]] Nanoseconds busy_ns() const {
    const std::lock_guard lock(mutex_);
    return busy_ns_;
  }
  /// Of copies that have landed.
  [[nodiscard]] std::uint64_t bytes_copied() const {
    const std::lock_guard lock(mutex_);
    return bytes_copied_;
  }
  /// How many copies of CUDA carried them: fewer than tickets where neighbours went together.
  [[nodiscard]] std::uint64_t transfers() const {
    const std::lock_guard lock(mutex_);
    return transfers_;
  }
  /// The fastest copy so far of those that were timed, by the device's own clock.
  [[nodiscard]] double peak_bytes_per_s() const {
    const std::lock_guard lock(mutex_);
    return peak_bytes_per_s_;
  }
  /// Of copies that have landed.
  [[nodiscard]] std::vector<Span> spans() const {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

  /// The clock of `spans`.
  static Nanoseconds now() noexcept {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  /// Copies are joined until they have this many bytes. From there on one more call of CUDA costs little beside the copy,
  /// and a task that waits for the first of several experts should not have to wait for all of them.
  static constexpr std::uint64_t together_bytes = std::uint64_t{4} << 20U;

  /// One in so many smaller copies is timed: a number that is hardly the period of a pattern of copies.
  static constexpr std::uint64_t timed_of = 11;

  /// What becomes of the last demand copies that would go to the stream now.
  enum class Last {
    goes,     ///< with the others
    may_stay  ///< until the next ones come, to be joined with them
  };

  /// One copy of CUDA.
  struct Sent {
    std::vector<Copy> copies;      ///< a prefetch, or one or more demand copies
    std::vector<HeldBytes> bytes;  ///< held until it has landed
    std::uint64_t from = 0, size = 0;
    bool completes = true;                       ///< no other piece of it follows
    Nanoseconds at_ns = 0;                       ///< when it went to the stream
    cudaEvent_t begin = nullptr, end = nullptr;  ///< begin is null for a copy whose time is not taken
  };
  struct Recorded {
    Fence fence;
    cudaEvent_t event;
  };
  struct Stream {
    Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() {
      if (handle != nullptr) static_cast<void>(cudaStreamDestroy(handle));
    }
    cudaStream_t handle = nullptr;
  };
  /// Events, made when they run out and used again.
  struct Events {
    explicit Events(unsigned event_flags) : flags(event_flags) {}
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;
    ~Events() {
      for (const cudaEvent_t e : all) static_cast<void>(cudaEventDestroy(e));
    }
    unsigned flags;
    std::vector<cudaEvent_t> all, free;
  };
  struct FreePinned {
    void operator()(std::byte* p) const { static_cast<void>(cudaFreeHost(p)); }
  };

  /// False after an error, which is kept if it is the first.
  bool good(cudaError_t error, const char* call) noexcept {
    if (error == cudaSuccess) return failed_.empty();
    fail(part::cuda_failure(error, call));
    return false;
  }
  void fail(const std::string& why) {
    if (failed_.empty()) failed_ = why;
    on_stream_.notify_all();
  }
  void throw_failure() const {
    if (!failed_.empty()) detail::fail<LinkError>("a copy failed: " + failed_);
  }

  /// For what belongs to the current device: a thread with several devices may have another one, and keeps it.
  template <class Call>
  void on_device(const Call& call) {
    int current = device_;
    if (!good(cudaGetDevice(&current), "cudaGetDevice")) return;
    if (current != device_ && !good(cudaSetDevice(device_), "cudaSetDevice")) return;
    call();
    if (current != device_) good(cudaSetDevice(current), "cudaSetDevice");
  }

  cudaEvent_t take_event(Events& events) {
    if (events.free.empty()) {
      cudaEvent_t event = nullptr;
      on_device([&] { good(cudaEventCreateWithFlags(&event, events.flags), "cudaEventCreateWithFlags"); });
      if (event != nullptr) events.all.push_back(event);
      return event;
    }
    const cudaEvent_t event = events.free.back();
    events.free.pop_back();
    return event;
  }

  /// Whether the device has got to that fence.
  bool reached(Fence fence) {
    while (!fences_.empty() && reached_ < fence) {
      const cudaError_t state = cudaEventQuery(fences_.front().event);
      if (part::not_ready(state)) return false;
      if (!good(state, "cudaEventQuery")) return false;
      reached_ = fences_.front().fence;
      untimed_.free.push_back(fences_.front().event);
      fences_.pop_front();
    }
    return reached_ >= fence;
  }

  /// Notes what has landed.
  void collect() {
    while (!sent_.empty() && failed_.empty()) {
      Sent& s = sent_.front();
      const cudaError_t state = cudaEventQuery(s.end);
      if (part::not_ready(state)) {
        pending_ns_ = now();
        return;
      }
      if (!good(state, "cudaEventQuery")) return;
      const bool timed = s.begin != nullptr;
      float from_base = 0, took = 0;
      if (timed && (!good(cudaEventElapsedTime(&from_base, base_, s.begin), "cudaEventElapsedTime") ||
                    !good(cudaEventElapsedTime(&took, s.begin, s.end), "cudaEventElapsedTime"))) {
        return;
      }
      const double measured = static_cast<double>(took) * 1e6, bytes = static_cast<double>(s.size);
      if (timed && s.size < together_bytes) ns_a_byte_ = measured / bytes;
      const auto ns = static_cast<Nanoseconds>(timed ? measured : ns_a_byte_ * bytes);
      const Nanoseconds begin = timed ? base_ns_ + static_cast<Nanoseconds>(static_cast<double>(from_base) * 1e6)
                                      : std::max(s.at_ns, free_ns_);
      busy_ns_ += ns;
      free_ns_ = timed ? begin + ns : std::max(pending_ns_, std::min(begin + ns, now()));
      const Copy& first = s.copies.front();
      if (!first.demand) before_ns_ = (s.from > 0 ? before_ns_ : 0) + ns;
      if (s.completes) {
        const Nanoseconds whole = first.demand ? ns / static_cast<Nanoseconds>(s.copies.size()) : before_ns_;
        times_.note(first.what.precision, whole);
      }
      bytes_copied_ += s.size;
      ++transfers_;
      if (timed && ns > 0)
        peak_bytes_per_s_ = std::max(peak_bytes_per_s_, static_cast<double>(s.size) * 1e9 / static_cast<double>(ns));
      for (const Copy& c : s.copies) {
        if (c.demand) demand_landed_ = c.ticket;
        if (options_.log) {
          spans_.push_back({Lane::link, c.demand ? "demand" : "prefetch", begin, begin + ns, c.what, true, c.ticket});
        }
      }
      if (!s.copies.front().demand) prefetch_bytes_ -= s.size;
      if (timed) timed_.free.push_back(s.begin);
      if (!timed) {
        untimed_.free.push_back(s.end);
      } else if (from_base > 1000) {  // CUDA gives milliseconds as a float: near the base they are exact
        timed_.free.push_back(std::exchange(base_, s.end));
        base_ns_ = begin + ns;
      } else {
        timed_.free.push_back(s.end);
      }
      sent_.pop_front();
    }
  }

  [[nodiscard]] bool queued(Ticket ticket) const {
    auto is = [&](const Copy& c) { return c.ticket == ticket; };
    const std::deque<Copy>& queue = is_prefetch(ticket) ? prefetch_ : demand_;
    return (staging_ && is(*staging_)) || std::any_of(queue.begin(), queue.end(), is);
  }

  /// Whether the next copy waits for a fence that has no event yet.
  [[nodiscard]] bool held_back() const {
    if (staging_) return false;
    if (!demand_.empty()) return demand_.front().after > named_;
    return !prefetch_.empty() && prefetch_.front().after > named_;
  }

  /// Whether the front of the prefetches may go to the stream.
  bool prefetch_may_go() {
    if (prefetch_.empty() || !demand_.empty() || held_back()) return false;
    const Copy& next = prefetch_.front();
    if (next.ticket <= urgent_) return true;
    if (prefetch_bytes_ >= options_.ahead_bytes) return false;
    return reached(next.after);
  }

  /// Puts on the stream what should be there by now, or lets the thread do it.
  void move_on(Last last) noexcept {
    if (thread_.joinable()) return;
    if (!failed_.empty()) return;
    if (prefetch_bytes_ > 0) collect();
    const std::string why = detail::failure_of([&] {
      while (!demand_.empty() && !held_back()) {
        while (crossed_ > 0 && failed_.empty() && into_slot_of_rest()) send_prefetch();
        Sent group;
        std::size_t count = 1;
        std::uint64_t bytes = slots_.slot_bytes(demand_.front().slot);
        while (count < demand_.size() && bytes < together_bytes && demand_[count].after <= named_ &&
               adjoin(demand_[count - 1], demand_[count])) {
          bytes += slots_.slot_bytes(demand_[count++].slot);
        }
        // A neighbour may still come, unless what there is does not reach to the end of its slot.
        if (count == demand_.size() && last == Last::may_stay && bytes < together_bytes &&
            adjoin(demand_[count - 1], demand_[count - 1], true)) {
          return;
        }
        group.copies.assign(demand_.begin(), demand_.begin() + static_cast<std::ptrdiff_t>(count));
        demand_.erase(demand_.begin(), demand_.begin() + static_cast<std::ptrdiff_t>(count));
        for (const Copy& c : group.copies) group.bytes.push_back(slots_.source(c.what));
        send(std::move(group), nullptr);
      }
      while (failed_.empty() && prefetch_may_go()) send_prefetch();
    });
    if (!why.empty()) fail(why);
  }

  /// A demand copy must not land before what is left of the prefetch into its slot.
  [[nodiscard]] bool into_slot_of_rest() const {
    return std::any_of(demand_.begin(), demand_.end(), [&](const Copy& c) { return c.slot == prefetch_.front().slot; });
  }
  /// The front of the prefetches goes to the stream, or the next piece of it.
  void send_prefetch() {
    Sent one;
    one.copies.push_back(prefetch_.front());
    one.bytes.push_back(slots_.source(one.copies[0].what));
    one.from = crossed_;
    const std::uint64_t chunk = options_.prefetch_chunk_bytes, size = one.bytes[0].view.size;
    one.completes = chunk == 0 || size - std::min(size, crossed_) <= chunk;
    if (one.completes) {
      prefetch_.pop_front();
      crossed_ = 0;
    } else {
      crossed_ += chunk;
    }
    send(std::move(one), nullptr);
  }
  /// How long so many bytes of an expert take, at the pace of the last one of its precision; 0 where none has landed.
  [[nodiscard]] Nanoseconds time_of(Precision precision, std::uint64_t bytes) const {
    const auto whole = static_cast<double>(times_.left(precision, 0, 0));
    const auto size = static_cast<double>(std::max<std::uint64_t>(expert_bytes_[static_cast<unsigned>(precision)], 1));
    return static_cast<Nanoseconds>(whole * static_cast<double>(bytes) / size);
  }

  /// Whether `b` lies right behind `a`, on the host as well as on the device. `alone`: whether anything could.
  [[nodiscard]] bool adjoin(const Copy& a, const Copy& b, bool alone = false) const {
    const View<const std::byte> from = slots_.source(a.what).view;
    if (from.size != slots_.slot_bytes(a.slot)) return false;
    if (alone) return a.slot + 1 < slots_.slots();
    return b.slot == a.slot + 1 && slots_.source(b.what).view.data == from.data + from.size;
  }

  /// Puts copies on the stream that lie one behind the other; from `staged`, if given.
  void send(Sent&& s, const std::byte* staged) {
    const Copy& first = s.copies.front();
    Fence after = first.after;
    for (std::size_t i = 0; i < s.copies.size(); ++i) {
      const std::uint64_t bytes = s.bytes[i].view.size, room = slots_.slot_bytes(s.copies[i].slot);
      if (bytes == 0 || bytes > room) {
        return fail("an expert of " + std::to_string(bytes) + " bytes for slot " + std::to_string(s.copies[i].slot) +
                    " of " + std::to_string(room));
      }
      s.size += bytes;
      after = std::max(after, s.copies[i].after);
    }
    expert_bytes_[static_cast<unsigned>(first.what.precision)] = s.bytes.back().view.size;
    s.size -= s.from;
    if (!s.completes) s.size = options_.prefetch_chunk_bytes;
    cudaStream_t stream = copies_.handle;
    if (!reached(after)) {
      const auto at = std::find_if(fences_.begin(), fences_.end(), [&](const Recorded& r) { return r.fence >= after; });
      if (!good(cudaStreamWaitEvent(stream, at->event, 0), "cudaStreamWaitEvent")) return;
    }
    s.at_ns = now();
    const bool timed = options_.log || s.size >= together_bytes || small_++ % timed_of == 0;
    s.begin = timed ? take_event(timed_) : nullptr;
    s.end = take_event(timed ? timed_ : untimed_);
    if (!failed_.empty()) return;
    std::byte* to = slots_.slot(first.slot);
    const std::byte* from = staged != nullptr ? staged : s.bytes.front().view.data;
    if (timed && !good(cudaEventRecord(s.begin, stream), "cudaEventRecord")) return;
    for (const Copy& c : s.copies) {
      if (!slots_.options().poison || s.from > 0) break;
      on_device([&] {
        good(cudaMemsetAsync(slots_.slot(c.slot), 0xff, slots_.slot_bytes(c.slot), stream), "cudaMemsetAsync");
      });
      if (!failed_.empty()) return;
    }
    if (!good(cudaMemcpyAsync(to + s.from, from + s.from, s.size, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync"))
      return;
    if (!good(cudaEventRecord(s.end, stream), "cudaEventRecord")) return;
    if (!first.demand) prefetch_bytes_ += s.size;
    if (staged != nullptr) s.bytes.clear();
    sent_.push_back(std::move(s));
  }

  /// The thread's work: bytes from anywhere into a page-locked buffer, and from there to the stream.
  void stage() {
    std::unique_lock lock(mutex_);
    good(cudaSetDevice(device_), "cudaSetDevice");
    for (std::size_t next = 0;; next = (next + 1) % buffers_.size()) {
      auto may_go = [&] { return failed_.empty() && !held_back() && (!demand_.empty() || prefetch_may_go()); };
      while (!stop_ && !may_go()) {
        // Fences and landings are seen by asking: while prefetches wait for one, from time to time.
        if (prefetch_.empty() || !failed_.empty() || held_back()) {
          wake_.wait(lock);
        } else {
          wake_.wait_for(lock, std::chrono::microseconds(50));
          collect();
        }
      }
      if (stop_) return;
      std::deque<Copy>& queue = demand_.empty() ? prefetch_ : demand_;
      staging_ = std::make_unique<Copy>(queue.front());
      queue.pop_front();
      lock.unlock();
      Sent one;
      one.copies.push_back(*staging_);
      cudaError_t freed = cudaSuccess;
      const std::string why = detail::failure_of([&] {
        one.bytes.push_back(slots_.source(one.copies[0].what));
        if (buffer_free_[next] != nullptr) freed = cudaEventSynchronize(buffer_free_[next]);
        const View<const std::byte> from = one.bytes[0].view;
        if (freed == cudaSuccess && from.size <= slots_.slot_bytes(one.copies[0].slot)) {
          std::memcpy(buffers_[next].get(), from.data, from.size);
        }
      });
      lock.lock();
      if (!why.empty()) fail(why);
      if (good(freed, "cudaEventSynchronize")) {
        send(std::move(one), buffers_[next].get());
        if (failed_.empty()) {
          if (buffer_free_[next] == nullptr) buffer_free_[next] = take_event(untimed_);
          good(cudaEventRecord(buffer_free_[next], copies_.handle), "cudaEventRecord");
        }
      }
      staging_.reset();
      on_stream_.notify_all();
    }
  }

  CudaSlots& slots_;
  cudaStream_t compute_;
  const Options options_;
  int device_ = 0;
  Stream copies_;
  Events timed_{cudaEventDefault}, untimed_{cudaEventDisableTiming};
  mutable std::mutex mutex_;  ///< contended with the staging thread alone
  std::condition_variable wake_, on_stream_;
  std::deque<Copy> demand_, prefetch_;  ///< not yet on the stream
  std::deque<Sent> sent_;               ///< on the stream, oldest first
  std::deque<Recorded> fences_;         ///< not known to be reached
  std::uint64_t prefetch_bytes_ = 0;    ///< of `sent_`
  std::uint64_t crossed_ = 0;           ///< of the front of `prefetch_`, bytes that are on the stream, or were
  Fence named_ = Fence::none, reached_ = Fence::none;
  Ticket last_demand_ = Ticket::none, last_prefetch_ = Ticket::none, demand_landed_ = Ticket::none;
  Ticket urgent_ = Ticket::none;  ///< prefetches up to this one go, whatever the limits
  Seen told_;                     ///< by the last `seen`
  std::string failed_;            ///< why the link stopped
  cudaEvent_t base_ = nullptr;    ///< happened at base_ns_
  Nanoseconds base_ns_ = 0, busy_ns_ = 0;
  Nanoseconds free_ns_ = 0;     ///< when the last copy that has landed did
  Nanoseconds before_ns_ = 0;   ///< what the pieces of a prefetch took that have landed
  Nanoseconds pending_ns_ = 0;  ///< when a copy was last seen not to have landed
  double ns_a_byte_ = 0;        ///< of the last small copy whose time was taken
  std::uint64_t small_ = 0;     ///< copies of less than together_bytes: taking a time holds the stream up
  std::uint64_t expert_bytes_[precision_count] = {};
  detail::CopyTimes times_;
  std::uint64_t bytes_copied_ = 0, transfers_ = 0;
  double peak_bytes_per_s_ = 0;
  std::vector<Span> spans_;
  // Of the thread
  std::vector<std::unique_ptr<std::byte, FreePinned>> buffers_;
  std::vector<cudaEvent_t> buffer_free_;  ///< by buffer; null: not used yet
  std::unique_ptr<Copy> staging_;         ///< neither queued nor on the stream
  bool stop_ = false;
  std::thread thread_;
};

static_assert(Link<CudaStream>);

}  // namespace ferry::inline FERRY_ABI
