/// @file
/// Made-up routing for models that cannot be held here, with the statistics that papers report of real ones; and the
/// measuring of those statistics in any trace. docs/synthetic.md says what is imitated, and what is not.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trace/trace_file.hpp"

namespace ferry::engine {

/// How many layers ahead a trace may predict.
inline constexpr std::uint32_t most_ahead = 4;

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

/// Routing of that shape: scores, chosen experts, weights, phases, predictions, partial rows. The same arguments give
/// the same bytes on any machine with IEEE floats and any compiler: ranks and exponentials are integer arithmetic, only
/// the last division of a softmax and the weights are not, and there no two roundings can be fused.
/// Throws InputError for knobs that cannot be met, or not together.
///
/// Complexity: O(tokens * layers * experts * (1 + ahead + partial)), after a calibration on up to 32,768 choices.
std::unique_ptr<TraceFile> synthesize(const ModelFacts& shape, const SyntheticOptions& options);

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
