/// @file
/// A link whose copies are reads of a mapped file into memory.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "expert_pages.hpp"
#include "ferry/concepts.hpp"

namespace ferry::llama_cpp {

/// A slot is room for an expert's pages, wherever they lie: a copy into it releases the pages of the expert that the slot held,
/// and reads in the new expert's. Several copies run at once, since a disk is faster with more to do.
///
/// The device is the caller's own thread, as with HostThread. While `computed` is set, a demand copy is for an expert that has
/// been computed already, from pages that the kernel brought in, so nothing is read for it.
class PageLink {
 public:
  struct Options {
    std::uint32_t slots = 0, threads = 4;
    bool releases = true;  ///< false: the kernel decides which pages go
  };
  PageLink(const ExpertPages& pages, const Options& options);
  ~PageLink();
  PageLink(const PageLink&) = delete;
  PageLink& operator=(const PageLink&) = delete;

  // Link
  void submit(const Copy& copy) noexcept;
  void drop(Ticket ticket) noexcept;
  Seen seen() noexcept;
  void fence(Fence fence) noexcept;
  void wait(Ticket ticket);

  /// Blocks until nothing is queued or on its way.
  void drain();
  /// Whether the present layer has been computed.
  void set_computed(bool computed) { computed_ = computed; }

 private:
  enum class State : std::uint8_t { queued, begun, over };
  struct Entry {
    Copy copy;
    State state = State::queued;
    bool reads = true;
  };
  /// Copies of one kind in the order of their tickets, until they and all before them are over.
  struct Queue {
    std::deque<Entry> entries;
    Ticket last = Ticket::none, landed = Ticket::none;
    Entry* find(Ticket ticket) noexcept;
    Entry* first_queued() noexcept;
    void retire() noexcept;
  };
  /// A copy that a thread carries out.
  struct UnderWay {
    std::uint32_t slot = 0;
    std::optional<ExpertId> leaves;  ///< whose pages it lets go of
  };

  Queue& queue_of(Ticket ticket) noexcept { return is_prefetch(ticket) ? prefetch_ : demand_; }
  Entry* next() noexcept;
  /// Gives the slot to the copy's expert. Returns the expert that it held if that is to leave memory.
  std::optional<ExpertId> take_slot(const Copy& copy);
  void work();

  const ExpertPages& pages_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_, landed_;
  Queue demand_, prefetch_;
  std::vector<UnderWay> under_way_;
  Fence reached_ = Fence::none;
  bool computed_ = false, stop_ = false;
  std::vector<std::optional<ExpertId>> held_;       ///< by slot
  std::map<std::uint32_t, std::uint32_t> slot_of_;  ///< by layer and expert: where an expert was brought last
  std::vector<std::thread> threads_;
};

static_assert(Link<PageLink>);

}  // namespace ferry::llama_cpp
