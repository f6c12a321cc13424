/// @file
/// One cell of a simulation: trace, machine, stack, budget, batch and parameters, and the report of it.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "profiles/machine.hpp"
#include "report/report.hpp"
#include "sim/simulate.hpp"
#include "trace/assumed_rows.hpp"
#include "trace/trace_file.hpp"

namespace ferry::engine {

/// Which bounds a simulation works out.
enum class BoundsChoice {
  none,
  proven,  ///< all-resident, clairvoyant
  all      ///< also by running the stack again with perfect prediction, Belady's cache, both, and Belady on demand
};

/// What a run simulates, all but the stack's own options.
struct SimulatedSetting {
  const TraceFile* trace = nullptr;
  std::string trace_name;
  Machine machine;
  CostSource costs = CostSource::effective;
  std::string as_shape;              ///< a shape's name or file, or empty
  std::string prefetch_chunk = "0";  ///< a share of an expert, or bytes
  BoundsChoice bounds = BoundsChoice::proven;
  const AssumedRows* assumed = nullptr;  ///< of this trace, for stacks that read what it lacks; null: those are refused
  bool remedies = true;                  ///< refusals say which of simulate's options would help

  /// The model that is simulated: the trace's, counted as `as_shape`. Throws InputError.
  [[nodiscard]] ModelShape model() const;
  /// Throws InputError, ConfigError.
  [[nodiscard]] Costs machine_costs() const;
};

/// A trace's model with the bytes of the shape's experts, at every precision that the shape has, so that budgets, copies and
/// times are all the shape's; without a shape the model as it is. Throws InputError.
ModelShape counted_as(ModelShape model, const std::string& as_shape);

/// Throws InputError or ConfigError for what cannot work, or needs more memory than there is.
RunReport run_simulation(const SimulatedSetting& setting, const SimulateOptions& options, Json parameters,
                         std::vector<Span>* spans = nullptr);

const char* cost_source_name(CostSource source);

}  // namespace ferry::engine
