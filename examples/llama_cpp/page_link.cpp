#include "page_link.hpp"

#include <algorithm>
#include <utility>

#include "ferry/error.hpp"

namespace ferry::llama_cpp {
namespace {

std::uint32_t number_of(ExpertId id) noexcept {
  return std::uint32_t{id.layer} << 16U | id.expert;
}

}  // namespace

PageLink::PageLink(const ExpertPages& pages, const Options& options)
    : pages_(pages), options_(options), held_(options.slots) {
  for (std::uint32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { work(); });
}

PageLink::~PageLink() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

PageLink::Entry* PageLink::Queue::find(Ticket ticket) noexcept {
  const auto at = std::lower_bound(entries.begin(), entries.end(), ticket,
                                   [](const Entry& e, Ticket t) { return e.copy.ticket < t; });
  return at == entries.end() || at->copy.ticket != ticket ? nullptr : &*at;
}

/// The first that has not begun.
PageLink::Entry* PageLink::Queue::first_queued() noexcept {
  for (Entry& e : entries) {
    if (e.state == State::queued) return &e;
  }
  return nullptr;
}

void PageLink::Queue::retire() noexcept {
  for (; !entries.empty() && entries.front().state == State::over; entries.pop_front())
    landed = entries.front().copy.ticket;
}

/// The next copy, if it may begin now. Demand goes first; a demand copy that cannot begin yet holds prefetches back, too. Copies
/// into one slot land in their order, and what one of them sends away is not brought in before it is gone.
PageLink::Entry* PageLink::next() noexcept {
  Entry* e = demand_.first_queued();
  if (e == nullptr) e = prefetch_.first_queued();
  if (e == nullptr || e->copy.after > reached_) return nullptr;
  const bool collides = std::any_of(under_way_.begin(), under_way_.end(), [&](const UnderWay& other) {
    return other.slot == e->copy.slot || other.leaves == e->copy.what.id;
  });
  return collides ? nullptr : e;
}

void PageLink::submit(const Copy& copy) noexcept {
  {
    const std::lock_guard lock(mutex_);
    Queue& queue = queue_of(copy.ticket);
    queue.entries.push_back({copy, State::queued, !(copy.demand && computed_)});
    queue.last = copy.ticket;
  }
  wake_.notify_one();
}

void PageLink::drop(Ticket ticket) noexcept {
  const std::lock_guard lock(mutex_);
  Entry* e = prefetch_.find(ticket);
  if (e == nullptr || e->state != State::queued) return;
  e->state = State::over;
  prefetch_.retire();
}

Seen PageLink::seen() noexcept {
  const std::lock_guard lock(mutex_);
  Seen s{demand_.landed, prefetch_.landed, prefetch_.landed};
  for (const Entry& e : prefetch_.entries) {
    if (e.state == State::queued) break;
    s.prefetch_begun = e.copy.ticket;
  }
  return s;
}

void PageLink::fence(Fence fence) noexcept {
  {
    const std::lock_guard lock(mutex_);
    reached_ = fence;
  }
  wake_.notify_all();
}

void PageLink::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  Queue& queue = queue_of(ticket);
  if (ticket > queue.last) throw LinkError("a copy was never submitted, expected it before it is waited for");
  landed_.wait(lock, [&] {
    const Entry* e = queue.find(ticket);
    return e == nullptr || e->state == State::over;
  });
}

void PageLink::drain() {
  std::unique_lock lock(mutex_);
  landed_.wait(lock, [&] { return demand_.entries.empty() && prefetch_.entries.empty(); });
}

std::optional<ExpertId> PageLink::take_slot(const Copy& copy) {
  const std::optional<ExpertId> old = std::exchange(held_[copy.slot], copy.what.id);
  const std::uint32_t now = number_of(copy.what.id);
  slot_of_[now] = copy.slot;
  if (!old || number_of(*old) == now) return {};
  const auto where = slot_of_.find(number_of(*old));
  if (where == slot_of_.end() || where->second != copy.slot) return {};  // it was brought into another slot since
  slot_of_.erase(where);
  return options_.releases ? old : std::nullopt;
}

void PageLink::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Entry* entry = nullptr;
    wake_.wait(lock, [&] { return stop_ || (entry = next()) != nullptr; });
    if (stop_) return;
    entry->state = State::begun;
    const Copy copy = entry->copy;
    const bool reads = entry->reads;
    const std::optional<ExpertId> old = take_slot(copy);
    under_way_.push_back({copy.slot, old});
    lock.unlock();
    if (reads) pages_.request(copy.what.id);
    if (old) pages_.release(*old);  // while the disk works
    if (reads) pages_.map(copy.what.id);
    lock.lock();
    std::erase_if(under_way_, [&](const UnderWay& one) { return one.slot == copy.slot; });
    Queue& queue = queue_of(copy.ticket);
    queue.find(copy.ticket)->state = State::over;
    queue.retire();
    landed_.notify_all();
    wake_.notify_all();  // others may have missed a wake-up, or wait for this slot
  }
}

}  // namespace ferry::llama_cpp
