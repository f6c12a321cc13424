/// @file
/// What the core counts. Every count is exact and depends only on the decisions, not on clocks.
#pragma once
#include <cstdint>

#include "ferry/model.hpp"

namespace ferry {

/// What became of the experts that the gate asked for, each counted once an expert, layer and step:
/// hits + late_hits + misses + substituted + skipped + host_computed == requests.
struct Outcomes {
  std::uint64_t requests = 0;
  std::uint64_t hits = 0;           ///< resident when asked for
  std::uint64_t late_hits = 0;      ///< on the link already: the layer waits for the rest of that copy
  std::uint64_t misses = 0;         ///< copied because it was asked for; also a prefetch that had not begun
  std::uint64_t substituted = 0;    ///< another expert ran instead
  std::uint64_t skipped = 0;        ///< nothing ran instead
  std::uint64_t host_computed = 0;  ///< ran on the host
  std::uint64_t bytes = 0;          ///< submitted to the link in this phase, less what was taken back

  /// Hits alone over requests; 0 without requests.
  [[nodiscard]] double hit_rate() const noexcept {
    return requests == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(requests);
  }
};

/// Prefetches. `issued` counts copies that were not taken back again (taking back is best effort: a link may
/// have begun one that counts as dropped here).
struct PrefetchCounts {
  std::uint64_t issued = 0;
  std::uint64_t used = 0;     ///< asked for by the gate before it left, late ones included
  std::uint64_t dropped = 0;  ///< submitted and taken back
  std::uint64_t issued_bytes = 0;
  std::uint64_t wasted_bytes = 0;     ///< evicted without having been asked for
  std::uint64_t needed = 0;           ///< requests of layers for which a prediction was made
  std::uint64_t needed_foretold = 0;  ///< those among them that the prediction named
  std::uint64_t rows = 0;             ///< rows of layers for which a prediction was made
  std::uint64_t rows_top1 = 0;        ///< rows whose best expert was the best of the predicted row

  /// Needed and foretold over needed: what Fate calls prefetch accuracy.
  [[nodiscard]] double recall() const noexcept { return ratio(needed_foretold, needed); }
  /// Used over issued.
  [[nodiscard]] double precision() const noexcept { return ratio(used, issued); }
  /// How often the best predicted expert was the best: what HOBBIT's Fig. 7b shows.
  [[nodiscard]] double top1() const noexcept { return ratio(rows_top1, rows); }

 private:
  static double ratio(std::uint64_t part, std::uint64_t whole) noexcept {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

struct Counters {
  Outcomes phase[2];  ///< by Phase
  PrefetchCounts prefetch;
  std::uint64_t bytes_by_precision[precision_count] = {};  ///< by Precision, less what was taken back
  std::uint64_t preload_bytes = 0;                         ///< submitted before the first step, in neither phase
  std::uint64_t steps[2] = {};                             ///< by Phase

  FERRY_HD Outcomes& of(Phase p) noexcept { return phase[static_cast<unsigned>(p)]; }
  [[nodiscard]] const Outcomes& of(Phase p) const noexcept { return phase[static_cast<unsigned>(p)]; }
};

}  // namespace ferry
