/// @file
/// Rows that a trace lacks, made up from the experts that it names: so every stack can be tried on every trace.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ferry/trace/trace.hpp"

namespace ferry::engine {

/// How well made-up predictions are to do, one layer ahead. Fate's own: 0.7879 and 0.9715 (its Table 1 and section 4.2).
struct AssumedRecall {
  double top_k = 0;       ///< share of the experts that a row needs that is among the k best of the predicted row
  double candidates = 0;  ///< among its best quarter, which holds the k best
  std::uint64_t seed = 1;

  /// Throws InputError unless 0 <= top_k <= candidates <= 1.
  void validate() const;
};

/// What a stack reads of a trace beside experts and weights.
struct RowNeeds {
  bool scores = false, partial = false;
  std::uint16_t ahead = 0;  ///< layers that it predicts from gate inputs

  /// From now on also what another stack reads.
  void add(const RowNeeds& other);
};

/// What a trace lacks of `scores`, `predicted` and `partial`, made up. What it has stays as it is.
///
/// *scores*: the weights of the chosen, 0 elsewhere; a chosen expert without a positive weight has the smallest normal
/// number, so that it ranks above those not chosen. The (k+1)-th score is 0: every chosen expert is top-score, and a
/// router that substitutes (ExpertCacheRouter) keeps them all.
///
/// *predicted*: a row is drawn from the experts that its token needs in the layer predicted, with a generator begun at
/// (seed, token, layer, distance), in integers: the same bytes on any machine, whatever else the trace holds. Each expert
/// is drawn by itself. With probability `top_k` it stands at its own place among the k best; else, so that `candidates`
/// holds, behind them among the best quarter (CrossLayerGate's candidates: E - 1 - floor(75 (E - 1) / 100), at least k);
/// else behind that. Where these places are taken, it stands behind them; so `candidates` counts only where the quarter
/// has more than k. All other places are for the other experts, at random. d layers ahead both shares are taken to the
/// power of d. Values descend by place: the row's weights by rank, then from half the least of them towards 0.
///
/// Where the trace's own rows choose by other rows (`choice_predicted`), made-up rows choose by themselves.
///
/// *partial*: rows like those one layer ahead, but drawn separately.
///
/// A prompt's row whose experts were not recorded counts as the nearest later one of its layer that was, or else the
/// nearest earlier one. With made-up scores the replay asks for those experts, since scores cannot say that nothing was
/// recorded; otherwise it asks for nothing, as ever.
class AssumedRows {
 public:
  /// Makes what the trace lacks of `needs`. The trace outlives it. Throws InputError for shares that cannot be.
  AssumedRows(const Trace& trace, const AssumedRecall& recall, const RowNeeds& needs);
  AssumedRows(const AssumedRows&) = delete;
  AssumedRows& operator=(const AssumedRows&) = delete;

  struct Completed {
    Trace trace;
    std::vector<std::string> made;  ///< names of the tensors that are made up, `experts` among them if some are
  };
  /// The trace with what it lacks of `needs`, no more than the constructor's. A view: this object outlives it.
  [[nodiscard]] Completed complete(const RowNeeds& needs) const;
  [[nodiscard]] const AssumedRecall& recall() const { return recall_; }

 private:
  void fill_gaps();
  void make_scores();
  void make_predicted(std::uint16_t ahead);
  void make_partial();

  const Trace& trace_;
  Trace whole_;  ///< with every expert recorded
  AssumedRecall recall_;
  std::uint16_t ahead_ = 0;
  std::vector<std::uint16_t> experts_;  ///< empty: the trace's own
  std::vector<float> weights_, scores_, predicted_, choice_predicted_, partial_;
};

/// Bytes of the rows that would be made.
std::uint64_t assumed_bytes(const Trace& trace, const RowNeeds& needs);
/// Throws InputError for more than 60% of this machine's memory.
void check_assumed_bytes(std::uint64_t bytes);

}  // namespace ferry::engine
