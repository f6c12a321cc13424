/// @file
/// What no policy can beat.
#pragma once
#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// What was computed, layer by layer: the variants that served, none twice in a layer. For reports, not for the hot
/// path.
struct UseLog {
  std::vector<Variant> uses;        ///< in the order in which the gates asked
  std::vector<std::uint32_t> ends;  ///< of each layer of each step: one past its last use

  /// One use of a layer.
  void add(Variant what) { uses.push_back(what); }
  /// No more uses of this layer.
  void end_layer() { ends.push_back(static_cast<std::uint32_t>(uses.size())); }
};

/// The fewest copies with which `slots` equal slots can serve the uses at one precision, whatever was known in advance
/// and whatever the slots held at the start.
///
/// A proven lower bound for every cache, allotment, prefetcher and order of computation within a layer, if `slots`
/// counts every slot that can hold that precision, stream slots among them. Proof. Let a schedule serve the whole list
/// with c copies, starting from contents I, |I| <= slots; starting empty it needs at most c + |I|. Of each layer, the
/// experts that are absent when the layer begins must be copied during or before it; moving a prefetch to its layer's
/// beginning changes no count. So what a schedule does is to choose, after each layer, at most `slots` of what was
/// there or was just used. Keeping those used next soonest leaves the fewest absent later (the exchange argument of
/// Belady's MIN, which holds for sets because each absent expert costs the same). Hence c >= MIN - slots. Uses at
/// different precisions are served by different copies, so that their bounds add up.
///
/// Exact for equal experts at one precision where the start may be chosen and an expert may leave as soon as it has run,
/// though others keep all the slots. Only a bound where experts of unequal size cost the same here, where each precision
/// may use all the slots that can hold it, and where a run's start was not the best one.
///
/// Complexity: O(n log n) for n uses. Allocates.
inline std::uint64_t fewest_copies(const UseLog& log, Precision precision, std::uint64_t slots) {
  constexpr std::uint32_t never = 0xffffffffU, absent = 0xfffffffeU;
  std::uint32_t layers = 0, experts = 0;
  for (const Variant& v : log.uses) {
    layers = std::max<std::uint32_t>(layers, v.id.layer + 1U);
    experts = std::max<std::uint32_t>(experts, v.id.expert + 1U);
  }
  auto key = [experts](const Variant& v) { return std::uint32_t{v.id.layer} * experts + v.id.expert; };
  // Of each use, when the same expert is used next, in layers run so far.
  std::vector<std::uint32_t> next(log.uses.size(), never);
  std::vector<std::uint32_t> upcoming(std::size_t{layers} * experts, never);
  for (std::size_t i = log.ends.size(), at = log.uses.size(); i-- > 0;) {
    for (const std::size_t first = i == 0 ? 0 : log.ends[i - 1]; at > first;) {
      const Variant& v = log.uses[--at];
      if (v.precision != precision) continue;
      next[at] = std::exchange(upcoming[key(v)], static_cast<std::uint32_t>(i));
    }
  }
  std::vector<std::uint32_t> there(std::size_t{layers} * experts, absent);  // what is kept: its next use
  std::priority_queue<std::pair<std::uint32_t, std::uint32_t>> farthest;    // next use, expert; some out of date
  std::uint64_t copies = 0, kept = 0;
  for (std::size_t i = 0, at = 0; i < log.ends.size(); ++i) {
    for (; at < log.ends[i]; ++at) {
      if (log.uses[at].precision != precision) continue;
      const std::uint32_t k = key(log.uses[at]);
      if (there[k] == absent) {
        ++copies;
        ++kept;
      }
      there[k] = next[at];
      farthest.emplace(next[at], k);
    }
    while (kept > slots) {
      const auto [use, k] = farthest.top();
      farthest.pop();
      if (there[k] != use) continue;
      there[k] = absent;
      --kept;
    }
  }
  return copies > slots ? copies - slots : 0;
}

/// Work that was done, in nanoseconds of whoever would do it.
struct WorkDone {
  Nanoseconds compute = 0;  ///< all of it on the device, experts that the host computed among them
  Nanoseconds dense = 0;    ///< of that what is not routed experts: no expert of its layer is computed beside it
  Nanoseconds copies = 0;   ///< the fewest copies that it needs, over the link one after another
  std::uint64_t uses = 0;   ///< of routed experts
  /// Of a single use of an expert: the most that the device takes, the longest copy, the least that the host takes.
  Nanoseconds most_device = 0, longest_copy = 0, least_host = 0;
  /// How fast, at best, the link is while the host computes, and the host while a copy is on the link; alone they are 1.
  double link_beside_host = 1, host_beside_copies = 1;
};

/// No schedule does that work on one device behind one link in less time: both are busy one piece at a time.
inline Nanoseconds clairvoyant_ns(const WorkDone& work) {
  return std::max(work.compute, work.copies);
}

/// The same if a host may compute any of the experts beside the device: the least over all h of the time in which device,
/// link and host can be done when the host computes h uses. Complexity: O(uses).
///
/// Proof. A use given to the host saves the device at most `WorkDone::most_device`, and the link at most one copy: whoever
/// serves the others with c copies serves all with c + 1. So the device is at work for at least compute - h most_device, and
/// there are at least C = copies - h longest_copy on the link, and H = h least_host on the host, as long as each would take
/// alone. Let x be the time in which both of these are at work, at the paces a and b: the host is at work alone for H - b x,
/// the link for C - a x. An expert needs its layer's gate, and the next layer needs the expert: the host rests in all of
/// `WorkDone::dense`, and beside that there is only room for the link. So no less passes than
/// x + (H - b x) + max(dense, C - a x), for 0 <= x <= H / b and a x <= C. Until C - a x falls to dense, this changes with x by
/// 1 - a - b; from there on it rises, by 1 - b. So the least is at one end or at that point.
inline Nanoseconds clairvoyant_with_host_ns(const WorkDone& work) {
  const double a = work.link_beside_host, b = work.host_beside_copies, dense = static_cast<double>(work.dense);
  auto shared = [&](double link, double host) {
    const double both = a + b > 1 ? std::min(std::max(link - dense, 0.0) / a, host / b) : 0;
    return host + (1 - b) * both + std::max(host > 0 ? dense : 0.0, link - a * both);
  };
  const double most = static_cast<double>(clairvoyant_ns(work));
  double least = most;
  for (std::uint64_t h = 1; h <= work.uses; ++h) {
    const double n = static_cast<double>(h), host = n * static_cast<double>(work.least_host);
    if (host >= least) break;
    const double device = static_cast<double>(work.compute) - n * static_cast<double>(work.most_device);
    const double link = static_cast<double>(work.copies) - n * static_cast<double>(work.longest_copy);
    least = std::min(least, std::max(device, shared(std::max(link, 0.0), host)));
  }
  return least < most ? static_cast<Nanoseconds>(std::max(least, 0.0)) : clairvoyant_ns(work);
}

}  // namespace ferry::inline FERRY_ABI
