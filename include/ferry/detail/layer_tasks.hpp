/// @file
/// The tasks of one layer: what is resident, what arrives, what the host computes.
#pragma once
#include "ferry/detail/cached_slots.hpp"
#include "ferry/detail/staging.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// At most one task an expert, in the order in which a plan lists them: first what is resident, then what arrives, then
/// the host's, added in that order. While a layer runs, each task on the device holds a lease on its slot.
template <class Stack>
class LayerTasks {
  using Slots = CachedSlots<Stack>;

 public:
  void reserve(Carver& carve, std::uint32_t experts, std::uint32_t stream_slots) {
    carve(tasks_, experts);
    staging_.reserve(carve, part::predicts<typename Stack::predictor>() ? stream_slots : 0);
  }

  FERRY_HD bool empty() const noexcept { return count_ == 0; }
  FERRY_HD std::uint32_t on_device() const noexcept { return arriving_end_; }
  FERRY_HD View<const Task> resident() const noexcept { return {tasks_.data(), resident_end_}; }
  FERRY_HD View<const Task> arriving() const noexcept {
    return {tasks_.data() + resident_end_, arriving_end_ - resident_end_};
  }
  FERRY_HD View<const Task> host() const noexcept { return {tasks_.data() + arriving_end_, count_ - arriving_end_}; }

  FERRY_HD void add_resident(View<const Request> requests, Slots& slots) noexcept {
    for (const Request& r : requests) {
      slots.accounts().hit(r);
      add(r, slots.residency().slot(r.slot).what, r.slot, Ticket::none);
    }
    resident_end_ = count_;
  }

  /// Experts that are there in stream slots; `done` has to name each of them by itself.
  FERRY_HD void add_staged(View<const Request> requests, Slots& slots) noexcept {
    for (const Request& r : requests) {
      if (r.state != State::resident || r.slot == no_slot || !slots.residency().is_stream(r.slot)) continue;
      slots.accounts().hit(r);
      const Residency::Slot& s = slots.residency().slot(r.slot);
      add(r, s.what, r.slot, s.ticket).transient = true;
    }
  }
  /// What is on its way runs when it has landed, the earliest first.
  FERRY_HD void add_in_flight(View<const Request> requests, Slots& slots) noexcept {
    const std::uint32_t first = count_;
    for (const Request& r : requests) {
      if (r.state != State::in_flight) continue;
      slots.accounts().late_hit(r);
      const Residency::Slot& s = slots.residency().slot(r.slot);
      add(r, s.what, r.slot, s.ticket).transient = slots.residency().is_stream(r.slot);
      for (std::uint32_t at = count_ - 1; at > first && tasks_[at].ready < tasks_[at - 1].ready; --at) {
        const Task later = tasks_[at - 1];
        tasks_[at - 1] = tasks_[at];
        tasks_[at] = later;
      }
    }
  }

  /// Demand copies: into the pool while there is room for them, through the stream slots in turn otherwise. Sets the slots
  /// of those of `misses` that go into the pool.
  FERRY_HD void load(View<Request> misses, Slots& slots) noexcept {
    std::uint16_t spared = Residency::no_pool, taken = Residency::no_pool;  // nothing to be had there
    std::uint32_t streamed = 0;
    for (Request& r : misses) {
      slots.accounts().miss(r);
      if (r.state == State::queued) {
        slots.expedite(r.slot);
      } else {
        r.slot = no_slot;
        if (slots.use_absent(r.want)) {
          r.slot = slots.make_room(r.want, Residency::for_prefetch, spared);
          if (r.slot == no_slot) r.slot = slots.make_room(r.want, Residency::for_demand, taken);
        }
        if (r.slot == no_slot) {
          ++streamed;
          continue;
        }
        slots.admit(r.slot, r.want, true);
      }
      slots.lease(r.slot);
      add(r, r.want, r.slot, slots.residency().slot(r.slot).ticket).transient = slots.residency().is_stream(r.slot);
    }
    next_streamed_ = count_;
    if (streamed > 0) stream(misses, slots);
    arriving_end_ = count_;
  }

  FERRY_HD void add_on_host(View<const Request> misses, Slots& slots) noexcept {
    for (const Request& r : misses) {
      slots.accounts().host(r);
      slots.use_absent(r.want);
      add(r, r.want, no_slot, Ticket::none);
    }
  }

  /// What is there, and the host computes all the same. Leased until now, so that no miss of this layer evicts it.
  FERRY_HD void add_hosted(View<const Request> requests, Slots& slots) noexcept {
    for (const Request& r : requests) {
      slots.accounts().hosted(r);
      add(r, slots.residency().slot(r.slot).what, no_slot, Ticket::none);
      slots.cancel_lease(r.slot);
    }
  }

  /// Whether copies of streamed tasks still wait for `done`.
  FERRY_HD bool waits() const noexcept { return next_streamed_ < arriving_end_; }

  /// These tasks have had their last reader at `fence`: what waits for their stream slots starts.
  FERRY_HD void done(View<const Task> tasks, Fence fence, Slots& slots) noexcept {
    for (const Task& t : tasks) {
      if (t.slot == no_slot || !slots.residency().is_leased(t.slot)) continue;
      if (t.transient && slots.residency().slot(t.slot).ticket != t.ready) continue;  // done before: another's slot now
      slots.end_lease(t.slot, fence);
      if (t.transient && waits() && tasks_[next_streamed_].slot == t.slot) slots.stream(tasks_[next_streamed_++]);
    }
    submit_waiting(slots);
  }

  FERRY_HD Staging& staging() noexcept { return staging_; }
  /// Submits the prefetches that were decided on, once every demand copy has been submitted.
  FERRY_HD void submit_waiting(Slots& slots) noexcept {
    if (waits()) return;
    slots.submit_held();
    for (; !staging_.empty(); staging_.pop()) {
      if (slots.residency().find(staging_.front()) != no_slot) continue;  // it was named twice
      const std::uint32_t slot = slots.free_stream_slot();
      if (slot == no_slot) return;
      slots.stage(slot, staging_.front());
    }
  }

  /// The layer is over: the leases that are left end.
  FERRY_HD void end(Fence fence, Slots& slots) noexcept {
    for (std::uint32_t i = 0; i < count_; ++i) {
      const std::uint32_t slot = tasks_[i].slot;
      if (slot != no_slot && slots.residency().is_leased(slot)) slots.end_lease(slot, fence);
    }
    count_ = resident_end_ = arriving_end_ = next_streamed_ = 0;
    submit_waiting(slots);
    staging_.clear();
  }

 private:
  FERRY_HD Task& add(const Request& r, Variant what, std::uint32_t slot, Ticket ready) noexcept {
    Task& t = tasks_[count_++];
    t = {what, slot, r.first, r.rows, no_task, ready, false};
    return t;
  }

  /// The misses without a slot: copies into free stream slots start, the others when a task before them is done.
  FERRY_HD void stream(View<const Request> misses, Slots& slots) noexcept {
    std::uint32_t before = resident_end_;  // the next transient task from here on frees its slot first
    bool any_free = true;
    for (const Request& r : misses) {
      if (r.slot != no_slot) continue;
      std::uint32_t slot = any_free ? slots.free_stream_slot() : no_slot;
      any_free = slot != no_slot;
      if (!any_free) {
        while (!tasks_[before].transient) ++before;
        slot = tasks_[before].slot;
        slots.take_turn(slot);
      }
      Task& t = add(r, r.want, slot, slots.next_ticket(true));
      t.transient = true;
      if (any_free) {
        slots.stream(t);
        next_streamed_ = count_;
      } else {
        t.freed_by = before++ - resident_end_;
      }
    }
  }

  Array<Task> tasks_;  ///< [experts]
  std::uint32_t count_ = 0, resident_end_ = 0, arriving_end_ = 0;
  std::uint32_t next_streamed_ = 0;  ///< the first streamed task whose copy has not started
  Staging staging_;
};

}  // namespace ferry::inline FERRY_ABI::detail
