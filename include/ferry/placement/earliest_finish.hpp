/// @file
/// Nobody waits for a copy if the host would be done sooner.
#pragma once
#include "ferry/concepts.hpp"
#include "ferry/detail/saturating.hpp"

namespace ferry::inline FERRY_ABI {

/// Puts each expert that is not there where the layer ends earliest. What is on its way can be waited for, or computed on the
/// host; of the rest, those in front are loaded, behind what is on its way, and the host computes the others. Behind the plan
/// of a decode step the link brings, while it has nothing else to do, what the cache policy wants most (`promotes`): nobody
/// waits for it, and it serves later tokens.
///
/// A loaded expert also serves later tokens. Where copies slow the host, a load may therefore make the layer longer than the
/// host alone would, by up to a tenth of `Request::gain_ns`, but never by more than copying it behind the layer would slow the
/// host.
///
/// What a use saves (`saves`) is the mean of two times. The first is how much longer the layer would have taken without this
/// expert, or how much less with it; the second is this expert's share of how much longer the layer takes with none of its
/// experts in slots than with all of them. By the first alone, a miss that is hidden behind other work would cost nothing
/// until there are two of them.
///
/// Of the ways to do it, the one with the least max(link, host) is taken. If nothing on its way is waited for, that is the
/// host's time for all of them; if it is, with n loads behind it, the link's remaining time and n copies, beside the host's
/// time for the others. Where the link allows it, loads go ahead of copies for another layer, but never of those that this
/// layer needs, which have less left to cross than a load. The misses must come with rows descending: compose it with
/// BatchSizeOrder.
///
/// Source: ours. What llama.cpp and Fiddler do, and HybriMoE's split, are two of the ways that it weighs.
/// Complexity: O(misses * resident) at worst, no state.
///
/// Ambiguities resolved. Of equally good ways, the one that loads less is taken. While the host's time is unknown, everything
/// goes to the host, which is how the engine comes to measure it; while a copy's time is unknown, nothing is loaded. In
/// prefill, where a whole layer would take long on the host, only one miss of several goes there, and copies of unknown time
/// count as taking none. While the host's time is unknown, a use saves a copy. In prefill, a use saves what a use by a single
/// row would save in decode if the layer had no other expert; or a copy, where that takes less, for then no such row is left
/// to the host. `saves` takes all of a layer's experts as equally long, and none as on its way.
struct EarliestFinish {
  static constexpr bool needs_ordered_batches = true;

  FERRY_HD static std::uint32_t split(Phase phase, View<const Request> misses) noexcept {
    return split(phase, {}, misses, {}, {}).loads;
  }
  FERRY_HD static Split split(Phase phase, View<const Request> resident, View<const Request> misses,
                              View<const Request> arriving, const LayerCosts& costs) noexcept {
    Nanoseconds host = 0, late = 0;
    for (const Request& r : misses) host += on_host(r, costs);
    for (const Request& r : arriving) late += on_host(r, costs);
    Split best{0, 0, arriving.size == 0};
    if (misses.size + arriving.size > 0 && host + late == 0) {
      return phase == Phase::decode ? best : Split{misses.size > 1 ? misses.size - 1 : misses.size, 0, true};
    }
    // A link that does not know may have just begun.
    const Nanoseconds busy = arriving.size > 0 && costs.link_ns == 0 ? arriving[0].copy_ns : costs.link_ns;
    const Request* const any = first_of(resident, misses, arriving);
    if (any == nullptr) return best;
    const Nanoseconds device = on_device(*any, costs);  // one stands for all
    Nanoseconds least = detail::longest, gained = 0;
    const auto weigh = [&](std::uint32_t loads, bool waits, Nanoseconds link, Nanoseconds on_host_so_far) {
      const std::uint32_t arrivals = loads + (waits ? arriving.size : 0);
      Nanoseconds share = on_host_so_far;
      for (std::uint32_t hosted = 0; hosted <= resident.size; ++hosted) {
        if (hosted > 0) share += on_host(resident[resident.size - hosted], costs);
        const Ends ends = together(link, share, costs);
        Nanoseconds done = detail::product(device, resident.size - hosted + arrivals);
        const Nanoseconds last = arrivals > 0 ? detail::sum(ends.link, device) : 0;
        if (done < last) done = last;
        const Nanoseconds host_done = share > 0 ? detail::sum(costs.host_start_ns, ends.host) : 0;
        const Nanoseconds later = (done > host_done ? done : host_done) - gained;
        if (later < least) {
          least = later;
          best = {loads, hosted, waits};
        }
        if (host_done >= done || costs.host_ns[static_cast<unsigned>(any->want.precision)] == 0) break;
      }
    };
    if (arriving.size > 0) weigh(0, false, busy, host + late);
    Nanoseconds link = arriving.size == 0 && costs.chunk_ns > 0 ? costs.chunk_ns : busy;
    for (std::uint32_t n = 0; n <= misses.size; ++n) {
      weigh(n, true, link, host);
      if (n == misses.size || (misses[n].copy_ns == 0 && phase == Phase::decode)) break;
      link = detail::sum(link, misses[n].copy_ns);
      gained = detail::sum(gained, worth_a_load(misses[n], costs));
      if (detail::sum(link, device) - gained >= least) break;
      host -= on_host(misses[n], costs);
    }
    return best;
  }

  FERRY_HD static Savings saves(Phase phase, View<const Request> resident, View<const Request> misses,
                                View<const Request> arriving, const LayerCosts& costs) noexcept {
    const Request* const any = first_of(resident, misses, arriving);
    if (any == nullptr) return {};
    Layer layer{0, on_device(*any, costs), any->copy_ns};
    if (phase == Phase::prefill) {
      Request row = *any;
      row.rows = 1;
      layer.host = on_host(row, costs);
    } else {
      const View<const Request> parts[] = {resident, misses, arriving};
      for (const View<const Request>& part : parts) {
        for (const Request& r : part) layer.host += on_host(r, costs);
      }
      layer.host /= resident.size + misses.size + arriving.size;
    }
    if (layer.host == 0) return layer.copy > 0 ? Savings{layer.copy, layer.copy} : Savings{1, 1};
    if (phase == Phase::prefill) {
      const Nanoseconds saved = layer.host - layer.device, copied = layer.copy > 0 ? layer.copy : saved;
      return saved < copied ? Savings{saved, saved} : Savings{copied, copied};
    }
    const std::uint32_t there = resident.size, absent = misses.size + arriving.size, all = there + absent;
    const Nanoseconds now = ends(layer, there, absent, costs);
    const Nanoseconds less = there > 0 ? ends(layer, there - 1, absent + 1, costs) : now;
    const Nanoseconds more = absent > 0 ? ends(layer, there + 1, absent - 1, costs) : now;
    const Nanoseconds none = there > 1 ? ends(layer, 0, all, costs) : less;
    const Nanoseconds share = (none - (absent > 1 ? ends(layer, all, 0, costs) : more)) / all;
    return {there > 0 ? mean(less - now, share) : 0, absent > 0 ? mean(now - more, share) : 0};
  }

  /// While it crosses, the host is slowed, which must not cost more than it saves.
  FERRY_HD static bool promotes(const Request& r, Nanoseconds more_saved, const LayerCosts& costs) noexcept {
    return more_saved > slowed(r, costs);
  }

 private:
  struct Ends {
    Nanoseconds link, host;
  };
  /// What each of its experts takes.
  struct Layer {
    Nanoseconds host, device, copy;
  };

  /// What the host loses while it crosses.
  FERRY_HD static Nanoseconds slowed(const Request& r, const LayerCosts& costs) noexcept {
    return detail::scaled(r.copy_ns, 1000 - pace(costs.host_beside_copies), pace(costs.link_beside_host));
  }
  FERRY_HD static Nanoseconds worth_a_load(const Request& r, const LayerCosts& costs) noexcept {
    if (r.gain_ns <= 0) return 0;
    const Nanoseconds most = slowed(r, costs);
    return r.gain_ns / 10 < most ? r.gain_ns / 10 : most;
  }
  FERRY_HD static Nanoseconds on_host(const Request& r, const LayerCosts& costs) noexcept {
    const std::uint32_t rows = r.rows > 0 ? r.rows : 1;
    const Nanoseconds one = costs.host_ns[static_cast<unsigned>(r.want.precision)];
    if (one == 0) return detail::bounded(detail::product(r.host_ns, rows));
    const Nanoseconds of_rows = detail::product(costs.host_row_ns, rows);
    return detail::bounded(one > of_rows ? one : of_rows);
  }
  FERRY_HD static Nanoseconds on_device(const Request& r, const LayerCosts& costs) noexcept {
    const Nanoseconds known = costs.device_ns[static_cast<unsigned>(r.want.precision)];
    return known > 0 ? known : r.device_ns;
  }
  FERRY_HD static const Request* first_of(View<const Request> a, View<const Request> b,
                                          View<const Request> c) noexcept {
    if (a.size > 0) return a.data;
    if (b.size > 0) return b.data;
    return c.size > 0 ? c.data : nullptr;
  }
  /// Of times whose sum may not fit.
  FERRY_HD static Nanoseconds mean(Nanoseconds a, Nanoseconds b) noexcept {
    return a / 2 + b / 2 + (a % 2 + b % 2) / 2;
  }
  /// In thousandths; unknown, or faster than alone: as alone.
  FERRY_HD static std::uint32_t pace(std::uint32_t thousandths) noexcept {
    return thousandths == 0 || thousandths > 1000 ? 1000 : thousandths;
  }
  /// When a layer ends of whose experts so many are there, and the others not, as `split` would place it.
  FERRY_HD static Nanoseconds ends(const Layer& layer, std::uint32_t there, std::uint32_t absent,
                                   const LayerCosts& costs) noexcept {
    Nanoseconds least = -1;
    for (std::uint32_t loads = 0; loads <= absent; ++loads) {
      const Nanoseconds link = detail::product(layer.copy, loads);
      if (loads > 0 && (link == 0 || detail::sum(link, layer.device) >= least)) break;
      for (std::uint32_t hosted = 0; hosted <= there; ++hosted) {
        const Ends both = together(link, detail::product(layer.host, absent - loads + hosted), costs);
        Nanoseconds done = detail::product(layer.device, there - hosted + loads);
        const Nanoseconds last = loads > 0 ? detail::sum(both.link, layer.device) : 0;
        if (done < last) done = last;
        const Nanoseconds host_done = both.host > 0 ? detail::sum(costs.host_start_ns, both.host) : 0;
        const Nanoseconds later = done > host_done ? done : host_done;
        if (least < 0 || later < least) least = later;
        if (host_done >= done) break;
      }
    }
    return least;
  }
  /// When both are done that begin together: until the first is, each goes on at its slower pace.
  FERRY_HD static Ends together(Nanoseconds link, Nanoseconds host, const LayerCosts& costs) noexcept {
    const std::uint32_t a = pace(costs.link_beside_host), b = pace(costs.host_beside_copies);
    if (link == 0 || host == 0 || (a == 1000 && b == 1000)) return {link, host};
    const Nanoseconds slow_link = detail::scaled(link, 1000, a), slow_host = detail::scaled(host, 1000, b);
    if (slow_link <= slow_host) return {slow_link, detail::sum(host, slow_link - detail::scaled(slow_link, b, 1000))};
    return {detail::sum(link, slow_host - detail::scaled(slow_host, a, 1000)), slow_host};
  }
};

static_assert(Placement<EarliestFinish>);

}  // namespace ferry::inline FERRY_ABI
