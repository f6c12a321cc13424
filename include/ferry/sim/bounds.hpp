/// @file
/// What no policy can beat.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ferry/model.hpp"

namespace ferry {

/// The experts that one layer of one step asked for, in any order, none twice.
struct AskedFor {
  std::uint16_t layer = 0;
  std::vector<std::uint16_t> experts;
};

/// The fewest copies with which `slots` equal slots can serve `asked`, whatever was known in advance and
/// whatever the slots held at the start.
///
/// A proven lower bound for every cache, allotment, prefetcher and order of computation within a layer,
/// stream slots counted among `slots`. Proof. Let a schedule serve the whole list with c copies, starting
/// from contents I, |I| <= slots; starting empty it needs at most c + |I|. Of each layer, the experts that
/// are absent when the layer begins must be copied during or before it; moving a prefetch to its layer's
/// beginning changes no count. So what a schedule does is to choose, after each layer, at most `slots` of
/// what was there or was just used. Keeping those used next soonest leaves the fewest absent later (the
/// exchange argument of Belady's MIN, which holds for sets because each absent expert costs the same). Hence
/// c >= MIN - slots. Not exact: experts of unequal size cost the same here, and the start is taken as if
/// chosen for free.
///
/// Complexity: O(n log n) for n expert uses. Allocates; for reports, not for the hot path.
inline std::uint64_t fewest_copies(const std::vector<AskedFor>& asked, std::uint64_t slots) {
  using Key = std::uint32_t;
  constexpr std::size_t never = ~std::size_t{0};
  auto key = [](std::uint16_t layer, std::uint16_t expert) { return Key{layer} << 16U | expert; };
  std::vector<std::vector<std::size_t>> next(asked.size());
  std::map<Key, std::size_t> upcoming;
  for (std::size_t i = asked.size(); i-- > 0;) {
    for (const std::uint16_t e : asked[i].experts) {
      const auto [at, first] = upcoming.try_emplace(key(asked[i].layer, e), never);
      next[i].push_back(at->second);
      at->second = i;
    }
  }
  std::set<std::pair<std::size_t, Key>> kept;  // by next use
  std::map<Key, std::size_t> next_use;
  std::uint64_t copies = 0;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    for (std::size_t j = 0; j < asked[i].experts.size(); ++j) {
      const Key k = key(asked[i].layer, asked[i].experts[j]);
      const auto there = next_use.find(k);
      if (there == next_use.end()) {
        ++copies;
      } else {
        kept.erase({there->second, k});
      }
      next_use[k] = next[i][j];
      kept.insert({next[i][j], k});
    }
    while (kept.size() > slots) {
      next_use.erase(kept.rbegin()->second);
      kept.erase(std::prev(kept.end()));
    }
  }
  return copies > slots ? copies - slots : 0;
}

}  // namespace ferry
