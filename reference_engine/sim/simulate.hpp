/// @file
/// Named stacks on traces, without the model: see ferry::Replay for how time moves.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ferry/fwd.hpp"
#include "ferry/metrics.hpp"
#include "ferry/sim/bounds.hpp"
#include "ferry/sim/costs.hpp"
#include "ferry/timeline.hpp"
#include "ferry/trace/trace.hpp"
#include "stacks/clairvoyance.hpp"
#include "stacks/stack_options.hpp"
#include "trace/assumed_rows.hpp"

namespace ferry::engine {

struct SimulateOptions : StackOptions {
  std::uint32_t batch = 1;
  std::uint32_t prefill_chunk = 128;
  Clairvoyance knows = Clairvoyance::none;
  bool bounds = true;
  bool log = false;                                                       ///< keep the timeline
  std::uint64_t max_tokens = ~std::uint64_t{0};                           ///< stop after the step that reaches it
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;  ///< tokens; false: stop
};

struct Simulated {
  Counters counters;
  PhaseClock phase[2];          ///< by Phase
  std::uint32_t prefilled = 0;  ///< groups of sequences that got through their prompts
  Nanoseconds prefill = 0;      ///< what these took
  std::uint64_t arena_bytes = 0;
  bool finished = false;  ///< false: `progress` stopped it
  std::optional<WorkDone> decode_work;
  std::vector<std::vector<Accuracy>> accuracy;                      ///< of predictions: [distance - 1][layer]
  std::vector<std::pair<std::uint64_t, std::uint64_t>> layer_hits;  ///< of decode: hits, requests
  std::vector<Span> spans;
};

/// What a stack reads of a trace beside experts and weights; nothing for options that cannot work, which `simulate`
/// refuses. Throws InputError for an unknown stack.
RowNeeds rows_read_by(const StackOptions& options, const ModelShape& model);

/// Replays a trace under a stack. The same arguments give the same result on any machine, to the last digit.
/// Throws InputError for an unknown stack, ConfigError for a budget that is too small or for what the trace lacks,
/// NoFuture for clairvoyance that the stack cannot have.
Simulated simulate(const Trace& trace, const Costs& costs, const SimulateOptions& options);

/// The same for a stack that the caller has configured for the trace's model, with room for its largest step. `options` count
/// only where they are not a stack's.
Simulated simulate_config(const AnyConfig& config, const Trace& trace, const Costs& costs,
                          const SimulateOptions& options);

}  // namespace ferry::engine
