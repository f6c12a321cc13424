/// @file
/// ARC: recency against frequency, balanced by what was evicted too soon.
#pragma once
#include <string>

#include "ferry/concepts.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Two LRU lists of slots, T1 for experts used once of late and T2 for those used again, and behind each a ghost list,
/// B1 and B2, of experts that left it. A miss that B1 remembers raises p, the target size of T1; one that B2 remembers
/// lowers it.
///
/// Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, Figure 4; c = slots.
/// Fate, section 4.4, has one in each layer. On a sequence of demand requests it hits what Figure 4 hits:
///  - `touch` of a slot is Case I. `touch` of what is absent adapts p (Cases II and III).
///  - `victim` answers REPLACE(x, p), or T1's last when T2 is empty (Case IV, |T1| = c).
///  - `replace` turns the slot's expert into a ghost, puts the new one into T2 if it was a ghost and else into T1, and
///    cuts the ghost lists so that |T1| + |B1| <= c and |B1| + |B2| <= c. With all slots filled these are the paper's
///    bounds on the directory, and cutting afterwards drops what Case IV drops beforehand, T1's last without a ghost too.
///
/// p is in units of 1 / 144403552893600, the least common multiple of 1 to 36. A step other than 1, |B2| / |B1| say,
/// has a denominator below c / 2: up to 73 slots none is rounded, and p is the real number of the paper. Beyond,
/// rounding must not decide |T1| = p: a p within 2^14 units (1e-10) of a whole number is set to that number.
///
/// Complexity: touch and replace O(1); victim O(1 + barred slots at the end). State: 32 bytes a slot, 20 an expert.
///
/// Deviations. Barred slots are passed over towards the recent end, then in the other list. `forget` leaves no ghost.
/// Ambiguities resolved. A prefetch is no access: it enters T1, p stays, and its first use leaves it in T1, most recent
/// now, as a demand load would have; if it leaves unused it leaves no ghost. A prefetched expert that was a ghost leaves
/// its ghost list, and its next use moves it to T2, because it had been used before. A miss that is then not admitted
/// (streamed, or run on the host) moves p if the expert is a ghost, and changes nothing else: the ghost stays. Each
/// precision of an expert is a page of its own, because a pool may hold two at once.
class Arc {
 public:
  /// Where a node is: the paper's lists, ghosts that are not in use, and slots that were never filled.
  enum List : std::uint8_t {
    t1,       ///< in slots, used at most once lately
    t2,       ///< in slots, used more than once
    b1,       ///< ghosts of what left T1
    b2,       ///< ghosts of what left T2
    spare,    ///< ghosts that stand for no expert
    unfilled  ///< slots that hold nothing
  };

  void reserve(Carver& carve, const PoolShape& pool) {
    if (pool.slots > most_slots) {
      detail::fail<ConfigError>("Arc: the pool has " + std::to_string(pool.slots) + " slots, " +
                                std::to_string(most_slots) + " are possible: divide it by layers");
    }
    slots_ = pool.slots;
    first_layer_ = pool.first_layer;
    experts_ = pool.experts;
    carve(nodes_, std::size_t{2} * slots_ + 1 + lists);
    carve(ghost_of_, std::size_t{pool.layers} * pool.experts * precision_count, none);
    if (carve.measuring()) return;
    for (std::uint32_t list = 0; list < lists; ++list)
      nodes_[ends_of(list)] = {ends_of(list), ends_of(list), 0, spare, false};
    for (std::uint32_t slot = 0; slot < slots_; ++slot) link(slot, unfilled);
    for (std::uint32_t ghost = slots_; ghost < ends_of(0); ++ghost) link(ghost, spare);
  }

  FERRY_HD void touch(Variant what, std::uint32_t slot) noexcept {
    if (slot != no_slot) {
      move(slot, nodes_[slot].unused ? t1 : t2);
      nodes_[slot].unused = false;
      return;
    }
    const std::uint32_t ghost = ghost_of_[key(what)];
    if (ghost != none) adapt(static_cast<List>(nodes_[ghost].list));
  }

  FERRY_HD std::uint32_t victim(Variant incoming, Barred barred) const noexcept {
    const std::uint32_t ghost = ghost_of_[key(incoming)];
    const bool in_b2 = ghost != none && nodes_[ghost].list == b2;
    const std::uint64_t recent = size_[t1] * unit;
    const List first = recent > target_ || (in_b2 && recent == target_) ? t1 : t2;
    const std::uint32_t slot = oldest(first, barred);
    return slot != no_slot ? slot : oldest(first == t1 ? t2 : t1, barred);
  }

  FERRY_HD void replace(std::uint32_t slot, Variant what, bool demand) noexcept {
    const std::uint32_t k = key(what);
    const std::uint32_t known = ghost_of_[k];
    if (known != none) drop(known);
    Node& node = nodes_[slot];
    if (!node.unused && (node.list == t1 || node.list == t2)) {
      const std::uint32_t ghost = nodes_[ends_of(spare)].older;
      nodes_[ghost].key = node.key;
      ghost_of_[node.key] = ghost;
      move(ghost, node.list == t1 ? b1 : b2);
    }
    node.key = k;
    node.unused = !demand && known == none;
    move(slot, known != none && demand ? t2 : t1);
    if (size_[t1] + size_[b1] > slots_) drop(nodes_[ends_of(b1)].newer);
    if (size_[b1] + size_[b2] > slots_) drop(nodes_[ends_of(b2)].newer);
  }

  FERRY_HD void forget(std::uint32_t slot) noexcept { move(slot, unfilled); }

  /// The paper's bounds, and that every slot and ghost is in the list that it says. |T1| + |T2| <= c and no more than 2c
  /// entries in all follow.
  [[nodiscard]] const char* check() const noexcept {
    std::uint32_t nodes = 0, ghosts = 0;
    for (std::uint32_t list = 0; list < lists; ++list) {
      if (const char* broken = check_list(static_cast<List>(list))) return broken;
      nodes += size_[list];
    }
    if (nodes != 2 * slots_ + 1) return "Arc: a node is in no list";
    for (const std::uint32_t ghost : ghost_of_) ghosts += ghost != none ? 1 : 0;
    if (ghosts != size_[b1] + size_[b2]) return "Arc: an expert is a ghost that B1 and B2 lack";
    if (size_[t1] + size_[b1] > slots_) return "Arc: |T1| + |B1| > c";
    if (size_[b1] + size_[b2] > slots_) return "Arc: |B1| + |B2| > c";
    if (target_ > slots_ * unit) return "Arc: p < 0 or p > c";
    return nullptr;
  }

  /// |T1|, |T2|, |B1| or |B2|.
  FERRY_HD std::uint32_t size(List list) const noexcept { return size_[list]; }

 private:
  static constexpr std::uint32_t lists = unfilled + 1;
  static constexpr std::uint32_t none = 0xffffffffU;
  static constexpr std::uint64_t unit = 144403552893600U;
  static constexpr std::uint64_t rounding = 1U << 14U;
  static constexpr std::uint32_t most_slots = static_cast<std::uint32_t>(0xffffffffffffffffU / unit) - 1;

  /// A list is a ring through its end: `older` of the end is the most recent node, `newer` of the end the least recent.
  struct Node {
    std::uint32_t newer = 0, older = 0;
    std::uint32_t key = 0;
    std::uint8_t list = spare;
    bool unused = false;  ///< prefetched, and not asked for since
  };

  FERRY_HD std::uint32_t key(Variant v) const noexcept {
    const std::uint32_t expert = static_cast<std::uint32_t>(v.id.layer - first_layer_) * experts_ + v.id.expert;
    return expert * precision_count + static_cast<std::uint32_t>(v.precision);
  }
  FERRY_HD std::uint32_t ends_of(std::uint32_t list) const noexcept { return 2 * slots_ + 1 + list; }

  FERRY_HD void link(std::uint32_t node, List list) noexcept {
    const std::uint32_t ends = ends_of(list);
    const std::uint32_t front = nodes_[ends].older;
    nodes_[node].newer = ends;
    nodes_[node].older = front;
    nodes_[node].list = list;
    nodes_[front].newer = node;
    nodes_[ends].older = node;
    ++size_[list];
  }
  /// To the most recent end of a list.
  FERRY_HD void move(std::uint32_t node, List list) noexcept {
    // One by one: reading the node at once would wait for a neighbour's write of a part of it.
    const std::uint32_t newer = nodes_[node].newer, older = nodes_[node].older;
    nodes_[newer].older = older;
    nodes_[older].newer = newer;
    --size_[nodes_[node].list];
    link(node, list);
  }
  FERRY_HD void drop(std::uint32_t ghost) noexcept {
    ghost_of_[nodes_[ghost].key] = none;
    move(ghost, spare);
  }
  FERRY_HD std::uint32_t oldest(List list, Barred barred) const noexcept {
    for (std::uint32_t slot = nodes_[ends_of(list)].newer; slot != ends_of(list); slot = nodes_[slot].newer) {
      if (!barred[slot]) return slot;
    }
    return no_slot;
  }

  const char* check_list(List list) const noexcept {
    const bool resident = list == t1 || list == t2, ghosts = list == b1 || list == b2;
    std::uint32_t at = ends_of(list), length = 0;
    for (; nodes_[at].older != ends_of(list); ++length) {
      const std::uint32_t older = nodes_[at].older;
      if (older >= ends_of(0) || nodes_[older].newer != at) return "Arc: the links of two neighbours disagree";
      at = older;
      const Node& node = nodes_[at];
      if (node.list != list) return "Arc: a node is in another list than it says";
      if ((at < slots_) != (resident || list == unfilled)) return "Arc: a slot is among the ghosts, or a ghost is not";
      if (!resident && !ghosts) continue;
      if (node.key >= ghost_of_.size()) return "Arc: an expert is of another pool";
      if (ghost_of_[node.key] != (ghosts ? at : none)) return "Arc: an expert is both there and a ghost, or neither";
    }
    if (nodes_[ends_of(list)].newer != at) return "Arc: the links of two neighbours disagree";
    return length == size_[list] ? nullptr : "Arc: a list is not as long as counted";
  }

  /// A miss that ghost list `list` remembers: p moves by the other list's length over this one's, at least by 1.
  FERRY_HD void adapt(List list) noexcept {
    const std::uint64_t here = size_[list], other = size_[list == b1 ? b2 : b1];
    const std::uint64_t step = here >= other ? unit : (other * unit + here / 2) / here;
    if (list == b1) {
      const std::uint64_t room = slots_ * unit - target_;
      target_ += step < room ? step : room;
    } else {
      target_ -= step < target_ ? step : target_;
    }
    const std::uint64_t above = target_ % unit;
    if (above <= rounding) target_ -= above;
    if (above >= unit - rounding) target_ += unit - above;
  }

  Array<Node> nodes_;              ///< [2 slots + 1 + lists]: slots, ghosts, and the two ends of each list in one
  Array<std::uint32_t> ghost_of_;  ///< [layers, experts, precisions] its node, or none
  std::uint64_t target_ = 0;       ///< p, in units
  std::uint32_t size_[lists] = {};
  std::uint32_t slots_ = 0, first_layer_ = 0, experts_ = 0;
};

static_assert(CachePolicy<Arc>);

}  // namespace ferry::inline FERRY_ABI
