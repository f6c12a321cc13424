/// @file
/// Searches for what the papers find on a calibration set. What a choice costs comes from a callable: a run of a model,
/// a replay, or a test's made-up surface; one that returns nothing has been stopped, and with it the search.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "stacks/stack_options.hpp"

namespace ferry::engine {

/// What a choice costs.
struct ChoiceCost {
  double loss_percent = 0;
  std::uint64_t bytes = 0;  ///< copied
};

/// T1 and T2 of ImportanceThresholds.
struct ThresholdChoice {
  double t1 = 1, t2 = 1;
  ChoiceCost cost;
};

/// A whole number: a percentage, or steps of a grid.
struct StepChoice {
  std::uint32_t step = 0;
  ChoiceCost cost;
};

/// Everything that was tried, in that order, and which of it is the best; none: nothing keeps within the loss.
template <class Choice>
struct Found {
  std::vector<Choice> tried;
  std::optional<std::size_t> best;
  bool stopped = false;  ///< before everything was tried that had to be
};

/// The pair on a grid of 1 / steps that copies least, of those which lose at most `most_loss_percent`. Exact if neither
/// threshold loses less, or copies more, when it falls: then a walk along the border of what is good enough, from
/// (0, 1) on T2 down after a good pair and T1 up after a bad one, meets every pair that can be the best. At most
/// steps + 1 measurements. `left`: at most so many, this one included.
Found<ThresholdChoice> find_thresholds(
    std::uint32_t steps, double most_loss_percent,
    const std::function<std::optional<ChoiceCost>(double t1, double t2, std::uint32_t left)>& measure);

/// The largest of 0 to `last` that loses at most `most_loss_percent`, by bisection: exact if more loses more. What it
/// returns was measured.
Found<StepChoice> find_largest(
    std::uint32_t last, double most_loss_percent,
    const std::function<std::optional<ChoiceCost>(std::uint32_t step, std::uint32_t left)>& measure);

/// All weights of a cache that sum to 1000 in steps of `step`, a divisor of it; the largest LRU first, then LFU, then LHU.
std::vector<CacheWeights> weight_mixtures(std::uint32_t step);

/// measure(0) to measure(count - 1), on all cores; what one of them throws ends them all.
std::vector<std::optional<std::uint64_t>> measure_all(
    std::size_t count, const std::function<std::optional<std::uint64_t>(std::size_t choice)>& measure,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace ferry::engine
