/// @file
/// From the statistics that are asked for to numbers that make rows with them, tried on a sample of choices.
#pragma once
#include <array>
#include <cstdint>

#include "trace/synthetic_rows.hpp"
#include "trace/synthetic_targets.hpp"

namespace ferry::engine::synthetic {

/// Weights of what a row of latents is made of, in q15.
struct Mixture {
  std::int64_t model, sequence, token;  ///< popularity, a sequence's favourites, what changes from token to token
  std::int64_t keep, fresh;             ///< what the next token keeps of the last, and what is fresh
};

/// How a row is predicted: with noise, and then put right or wrong so often that the statistics come out. Chances in
/// ppm.
struct PredictionModel {
  std::int64_t keep = q15, noise = 0;
  std::int64_t promote = 0;  ///< if the best is not predicted as the best, that it becomes so
  std::int64_t demote = 0;   ///< if it is, that it changes places with the second
  std::int64_t inside = 0;   ///< if a chosen expert is beyond the candidates, that it changes places with one of them
  std::int64_t outside = 0;  ///< the other way round, for one that is no more than a candidate
};

/// How a partial hidden state predicts: with noise, and then with more or fewer of the chosen above the bar. In ppm:
struct PartialPrediction {
  std::int64_t keep = q15, noise = 0;
  std::int64_t raise = 0;      ///< that a low-score expert among the k best is raised above the bar
  std::int64_t lower = 0;      ///< that one above it is lowered
  std::int64_t lower_top = 0;  ///< that a top-score expert above it is lowered
};

struct Calibration {
  Mixture mixture;
  ScoreMap map;
  std::array<PredictionModel, most_ahead> shallow, deep;
  PartialPrediction partial;
};

/// Throws InputError for targets that cannot be met, or not together. The same sample for all seeds: O(experts) for each
/// of up to 8,192 rows, some hundred times. Only a part of it if `progress` says stop.
Calibration calibrate(const ModelFacts& shape, const SyntheticOptions& options, const SyntheticTargets& targets);

}  // namespace ferry::engine::synthetic
