/// @file
/// What the core counts. Every count is exact and depends only on the decisions, not on clocks.
#pragma once
#include <cstdint>

#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI {

/// What became of the experts that the gate asked for, each counted once an expert, layer and step:
/// hits + late_hits + misses + substituted + skipped + host_computed == requests.
struct Outcomes {
  std::uint64_t requests = 0;          ///< each counted once an expert, layer and step
  std::uint64_t hits = 0;              ///< resident when asked for
  std::uint64_t late_hits = 0;         ///< on the link already: the layer waits for the rest of that copy
  std::uint64_t misses = 0;            ///< copied because it was asked for; also a prefetch that had not begun
  std::uint64_t substituted = 0;       ///< another expert ran instead
  std::uint64_t skipped = 0;           ///< nothing ran instead
  std::uint64_t host_computed = 0;     ///< ran on the host
  std::uint64_t bytes = 0;             ///< submitted to the link in this phase, less what was taken back
  std::uint64_t miss_bytes = 0;        ///< of the misses, at the precision that each was loaded in
  std::uint64_t prefetched = 0;        ///< of hits and late hits, those that were the first use of a prefetched expert
  std::uint64_t prefetched_bytes = 0;  ///< and their bytes, which crossed the link behind the work of earlier layers

  /// Requests with a top score: some row scores the expert above (1 + alpha) times its (k+1)-th score. Of these, `top_misses`
  /// had to be loaded or computed on the host, and `top_late_hits` were being copied already. Counted if
  /// CoreConfig::top_score_alpha is set and full scores are given.
  std::uint64_t top_requests = 0, top_misses = 0, top_late_hits = 0;
  /// The same of all other requests.
  std::uint64_t low_requests = 0, low_misses = 0, low_late_hits = 0;

  /// Hits alone over requests; 0 without requests.
  [[nodiscard]] double hit_rate() const noexcept {
    return requests == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(requests);
  }
  /// Sum over the misses, where one of `high_bytes` counts 1 and one at low precision B_l / B_h: HOBBIT, section 3.4,
  /// with bytes for bit widths.
  [[nodiscard]] double miss_penalty(std::uint64_t high_bytes) const noexcept {
    return high_bytes == 0 ? 0.0 : static_cast<double>(miss_bytes) / static_cast<double>(high_bytes);
  }
};

/// How well a layer's experts were predicted.
struct Accuracy {
  std::uint64_t needed = 0;     ///< experts that the gate chose in layers for which a prediction was made
  std::uint64_t predicted = 0;  ///< those among them that the prediction named
  std::uint64_t rows = 0;       ///< rows of such layers, if rows made the prediction
  std::uint64_t rows_top1 = 0;  ///< rows whose best expert was the best of the predicted row

  /// Adds what another has counted.
  FERRY_HD Accuracy& operator+=(const Accuracy& other) noexcept {
    needed += other.needed;
    predicted += other.predicted;
    rows += other.rows;
    rows_top1 += other.rows_top1;
    return *this;
  }
  /// The share of the needed experts that was predicted: what Fate calls prefetch accuracy.
  [[nodiscard]] double recall() const noexcept { return ratio(predicted, needed); }
  /// How often the best predicted expert was the best: what HOBBIT's Fig. 7b shows.
  [[nodiscard]] double top1() const noexcept { return ratio(rows_top1, rows); }

  /// A share; 0 of nothing.
  static double ratio(std::uint64_t part, std::uint64_t whole) noexcept {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

/// Prefetches. `issued` counts copies that were not taken back again (taking back is best effort: a link may
/// have begun one that counts as dropped here).
struct PrefetchCounts {
  std::uint64_t issued = 0;        ///< submitted, less those taken back
  std::uint64_t used = 0;          ///< asked for by the gate before it left, late ones included
  std::uint64_t dropped = 0;       ///< submitted and taken back
  std::uint64_t promoted = 0;      ///< submitted because the cache wanted them most, and nobody had predicted them
  std::uint64_t issued_bytes = 0;  ///< of those in `issued`: less what was taken back
  std::uint64_t wasted_bytes = 0;  ///< evicted without having been asked for
  /// Layers from which the stack's predictor would have looked ahead, and was not asked to: an engine that forgets
  /// `look_ahead` runs such a stack as if it predicted nothing.
  std::uint64_t layers_not_asked = 0;
  Accuracy accuracy;  ///< of the nearest prediction of each layer, counted by the first call behind its plan

  /// Used over issued.
  [[nodiscard]] double precision() const noexcept { return Accuracy::ratio(used, issued); }
};

/// What a core counts, from its construction on.
struct Counters {
  Outcomes phase[2];                                       ///< by Phase
  PrefetchCounts prefetch;                                 ///< in both phases
  std::uint64_t bytes_by_precision[precision_count] = {};  ///< by Precision, less what was taken back
  std::uint64_t preload_bytes = 0;                         ///< submitted before the first step, in neither phase
  std::uint64_t steps[2] = {};                             ///< by Phase
  std::uint64_t unfinished_steps = 0;                      ///< abandoned by the next one's begin_step

  /// The outcomes of a phase, to change.
  FERRY_HD Outcomes& of(Phase p) noexcept { return phase[static_cast<unsigned>(p)]; }
  /// The outcomes of a phase.
  [[nodiscard]] const Outcomes& of(Phase p) const noexcept { return phase[static_cast<unsigned>(p)]; }
};

}  // namespace ferry::inline FERRY_ABI
