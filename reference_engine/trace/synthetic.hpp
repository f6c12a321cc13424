/// @file
/// Made-up routing for models that cannot be held here, with the statistics that papers report of real ones.
/// docs/synthetic.md says what is imitated, and what is not.
#pragma once
#include <memory>

#include "trace/synthetic_targets.hpp"
#include "trace/trace_file.hpp"

namespace ferry::engine {

/// Routing of that shape: scores, chosen experts, weights, phases, predictions, partial rows. The same arguments give
/// the same bytes on any machine with IEEE floats and any compiler: ranks and exponentials are integer arithmetic, only
/// the last division of a softmax and the weights are not, and there no two roundings can be fused.
/// Null if `progress` stopped it. Throws InputError for knobs that cannot be met, or not together.
///
/// Complexity: O(tokens * layers * experts * (1 + ahead + partial)), after a calibration on up to 32,768 choices.
std::unique_ptr<TraceFile> synthesize(const ModelFacts& shape, const SyntheticOptions& options);

}  // namespace ferry::engine
