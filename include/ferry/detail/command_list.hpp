/// @file
/// What the link is to do, and what that costs.
#pragma once
#include "ferry/metrics.hpp"
#include "ferry/residency.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// The commands of one call of the core, with the accounts of bytes and prefetches that go with them. All calls O(1)
/// except `submit_held`.
class CommandList {
 public:
  void reserve(Carver& carve, const ModelShape& model, std::uint32_t cache_slots) {
    carve(bytes_, std::size_t{model.layers} * precision_count);
    carve(submits_, std::size_t{model.experts} + cache_slots);
    carve(held_, cache_slots);
    carve(drops_, cache_slots);
    if (carve.measuring()) return;
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      for (std::uint32_t p = 0; p < precision_count; ++p) {
        bytes_[l * precision_count + p] = model.bytes(l, static_cast<Precision>(p));
      }
    }
  }

  FERRY_HD void clear() noexcept { drop_count_ = submit_count_ = 0; }
  FERRY_HD Commands view() const noexcept { return {{drops_.data(), drop_count_}, {submits_.data(), submit_count_}}; }
  FERRY_HD std::uint32_t submits() const noexcept { return submit_count_; }

  FERRY_HD std::uint64_t bytes_of(Variant v) const noexcept {
    return bytes_[v.id.layer * precision_count + static_cast<unsigned>(v.precision)];
  }

  /// The copy of `what` into `slot`, which is `to`. `hold`: keep it back until `submit_held`.
  FERRY_HD void submit(std::uint32_t slot, const Residency::Slot& to, Variant what, bool demand, bool hold, Phase phase,
                       Counters& counters) noexcept {
    Copy& copy = hold ? held_[held_count_++] : submits_[submit_count_++];
    copy.ticket = to.ticket;
    copy.what = what;
    copy.slot = slot;
    copy.after = to.last_reader;
    copy.demand = demand;
    const std::uint64_t bytes = bytes_of(what);
    counters.of(phase).bytes += bytes;
    counters.bytes_by_precision[static_cast<unsigned>(what.precision)] += bytes;
    if (demand) return;
    ++counters.prefetch.issued;
    counters.prefetch.issued_bytes += bytes;
  }

  FERRY_HD void submit_held() noexcept {
    for (std::uint32_t i = 0; i < held_count_; ++i) submits_[submit_count_++] = held_[i];
    held_count_ = 0;
  }

  /// The queued prefetch of this slot is taken back.
  FERRY_HD void drop(const Residency::Slot& slot, Counters& counters) noexcept {
    drops_[drop_count_++] = slot.ticket;
    counters.of(slot.submitted_in).bytes -= bytes_of(slot.what);
    counters.bytes_by_precision[static_cast<unsigned>(slot.what.precision)] -= bytes_of(slot.what);
    counters.prefetch.issued_bytes -= bytes_of(slot.what);
    --counters.prefetch.issued;
    ++counters.prefetch.dropped;
  }

 private:
  Array<std::uint64_t> bytes_;  ///< [layers, precision_count]
  Array<Copy> submits_;
  Array<Copy> held_;  ///< prefetches behind demand copies that wait for `done`
  Array<Ticket> drops_;
  std::uint32_t submit_count_ = 0, held_count_ = 0, drop_count_ = 0;
};

}  // namespace ferry::inline FERRY_ABI::detail
