/// @file
/// The statistics that papers report of routing, measured in any trace.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "ferry/trace/trace.hpp"

namespace ferry::engine {

/// How many layers ahead a trace may predict.
inline constexpr std::uint32_t most_ahead = 4;

struct Share {
  std::uint64_t part = 0, whole = 0;

  void count(bool yes) {
    part += yes ? 1 : 0;
    ++whole;
  }
  void add(const Share& other) {
    part += other.part;
    whole += other.whole;
  }
  /// NaN if nothing was counted.
  [[nodiscard]] double value() const { return static_cast<double>(part) / static_cast<double>(whole); }
};

/// What was counted, of one layer or of several. What a trace does not have is counted 0 of 0 times.
struct RoutingShares {
  Share reuse;                         ///< of the chosen, those chosen at the next token of the sequence
  Share reuse_best;                    ///< of the best
  Share reuse_any;                     ///< of tokens: at least one of the k
  Share favourites;                    ///< chosen again half a sequence later (of at least 4 tokens)
  Share popularity;                    ///< chosen by a token of another sequence, of all pairs of such tokens
  Share high, skip;                    ///< HOBBIT's Eq. 2, of all chosen
  Share best_two_high, best_two_skip;  ///< the same as if the best two scores were the chosen
  Share low_score;                     ///< of the chosen
  /// By distance - 1, of the layer that is predicted. Prompts count for `recall_prefill`, the rest is decode.
  std::array<Share, most_ahead> recall_top_k, recall_percentile, top_1, recall_prefill;
  Share partial_top_score;  ///< of the experts that partial hidden states predict as top-score, those that are
  Share partial_active;     ///< of the others, those that are chosen

  void add(const RoutingShares& other);
};

struct RoutingStatistics {
  std::vector<RoutingShares> layers;

  /// Of the layers [first, last) together.
  [[nodiscard]] RoutingShares of(std::size_t first, std::size_t last) const;
  [[nodiscard]] RoutingShares all() const { return of(0, layers.size()); }
};

/// Counts all of that in any trace, recorded or made. A prompt counts as one step, whatever its length.
/// O(tokens * layers * experts * (ahead + partial)).
RoutingStatistics measure(const Trace& trace, double alpha = 0.3);

}  // namespace ferry::engine
