/// @file
/// Named stacks beside a model that runs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ferry/any_pipeline.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "profiles/machine.hpp"
#include "report/report.hpp"
#include "stacks/configured_stack.hpp"
#include "trace/trace_file.hpp"

namespace ferry::llama_cpp {

/// What `ferry simulate` knows by the same options. With `as_reference` experts take as long as those of the machine's
/// reference model, whatever their bytes, as `ferry run --clock virtual` counts.
struct LiveSettings {
  std::string budget = "25%", machine = "rtx3090-pcie3", as_shape;
  engine::CostSource costs = engine::CostSource::effective;
  bool as_reference = false;
  std::uint32_t chunk = 128;
};

/// What one stack would have hit, moved and waited for: its pipeline on a virtual clock, with each forward pass as a trace of
/// one step. It makes the calls that a replay of the whole trace makes, and `ferry simulate` gives the same figures.
class LiveStack {
 public:
  /// `stack`: a name, or a stack file. `model`: a trace of it. Throws InputError or ConfigError for what cannot work.
  LiveStack(const std::string& stack, const engine::TraceFile& model, const LiveSettings& settings);

  void pass(const Trace& step);
  [[nodiscard]] const std::string& name() const { return facts_.stack; }
  [[nodiscard]] const Counters& counters() const { return pipe_->counters(); }
  [[nodiscard]] const PhaseClock& clock(Phase p) const { return passed_[static_cast<unsigned>(p)]; }
  /// `finished`: nobody has stopped the text.
  [[nodiscard]] engine::RunReport report(bool finished) const;

 private:
  engine::RunReport facts_;
  ModelShape model_;
  Costs costs_;
  std::uint32_t chunk_;
  engine::ConfiguredStack stack_;
  std::unique_ptr<VirtualClock> clock_;
  std::unique_ptr<AnyPipeline> pipe_;
  PhaseClock passed_[2];  ///< by Phase
};

}  // namespace ferry::llama_cpp
