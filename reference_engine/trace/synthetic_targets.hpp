/// @file
/// Which statistics a made-up routing shall have. docs/synthetic.md says what is imitated, and what is not.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "profiles/shape.hpp"
#include "trace/routing_statistics.hpp"

namespace ferry::engine {

/// What the routing shall be like. All shares are 0 to 1. What is left unset is documented with it.
struct SyntheticOptions {
  std::uint64_t seed = 0;
  std::uint32_t sequences = 8, prompt = 64, tokens = 128;  ///< tokens of decode, behind each prompt
  std::uint16_t ahead = 3;                                 ///< layers to predict, up to 4
  bool partial = true;                                     ///< rows of partial hidden states, in decode

  /// How likely a chosen expert is chosen at the next token. Unset: a fifth of the way from chance (k / E) to always.
  std::optional<double> reuse;
  /// The same half a sequence later: a sequence's own favourites. Unset: 0.6 of what `reuse` is above chance.
  std::optional<double> favourites;
  /// The same in another sequence: popularity over the model. Unset: 0.4 of what `favourites` is above chance.
  std::optional<double> popularity;

  /// Shares of the chosen with s <= T1 = 0.6 (full precision) and with s > T2 = 0.9 (skipped), HOBBIT's Eq. 2. Unset,
  /// for k = 2: 0.67 and 0.03 (HOBBIT, section 3.2); for more: three quarters of what equal weights would give (ours,
  /// see docs), and what follows; for k = 1, where the chosen one is always important: as for k = 2, of the best two
  /// scores.
  std::optional<double> high_share, skip_share;
  /// Share of the chosen that are low-score: no more than 1 + alpha times the (k+1)-th score (Importance-driven,
  /// section 5.1). Unset: what follows.
  std::optional<double> low_score;
  double alpha = 0.3;  ///< 0.05 to 1; also what a partial hidden state predicts by

  /// Of the chosen, those among the k best predicted 1, 2, ... layers ahead; decode, mean over layers. The first is
  /// Fate's (Table 1, position 2), the second too (position 3, more than one MoE block away), the others are ours.
  std::array<double, most_ahead> recall_top_k{0.7879, 0.7694, 0.75, 0.73};
  /// Those above the 75th percentile, one layer ahead. Unset: 0.9715 (Fate, section 4.2), or more if that were over
  /// half the misses of recall_top_k, where the rule names more than k experts; elsewhere what follows.
  std::optional<double> recall_percentile;
  /// Of the experts that a prompt chooses, those that its rows name together, at any distance. Unset: what follows, but
  /// at least 0.998 (Fate, Table 1: more than 0.996).
  std::optional<double> recall_prefill;
  /// The best predicted is the best. Unset: 0.96, 0.9, 0.9 (HOBBIT, Fig. 7b) and 0.9; with k = 1 it is recall_top_k.
  std::array<std::optional<double>, most_ahead> top_1;

  /// The first so many layers are predicted worse (Fate, section 4.4), and by how much: they miss so many times as often
  /// as the others by top k (ours; top 1 alike) and by percentile (from Fate's 99.08% and 97.15%, see docs).
  std::uint16_t shallow = 4;
  double shallow_misses = 2, shallow_percentile_misses = 13;

  /// Of the experts that a partial hidden state predicts as top-score: those that are, and those of the others that
  /// are at least chosen. Unset: 0.82 and 0.95 (Importance-driven, section 6.3).
  std::optional<double> partial_top_score, partial_active;

  /// Counts layers of all sequences. Returns false to stop, and again whenever it is asked after that.
  std::function<bool(std::uint64_t done, std::uint64_t all)> progress = {};

  /// How many of the layers that are predicted from `distance` layers before are among the first `shallow`.
  [[nodiscard]] std::uint32_t shallow_predicted(std::uint32_t distance) const {
    return shallow > distance ? shallow - distance : 0U;
  }
};

/// What `synthesize` aims at: the options, with nothing left unset but what follows from the rest.
struct SyntheticTargets {
  struct ByDepth {
    double shallow = 0, deep = 0;
  };

  double reuse = 0, favourites = 0, popularity = 0;
  double high_share = 0;
  std::optional<double> skip_share;
  bool of_best_two = false;  ///< k = 1: of the best two scores, if both were chosen
  std::optional<double> low_score;
  std::array<ByDepth, most_ahead> recall_top_k;
  std::array<std::optional<ByDepth>, most_ahead> top_1;
  std::optional<ByDepth> recall_percentile;
  double recall_prefill = 0;
  bool at_least = false;  ///< recall_prefill may be more
  double partial_top_score = 0, partial_active = 0;
};

/// Throws InputError for what cannot be, naming the knob, its value, and what would work.
SyntheticTargets synthetic_targets(const ModelFacts& shape, const SyntheticOptions& options);

}  // namespace ferry::engine
