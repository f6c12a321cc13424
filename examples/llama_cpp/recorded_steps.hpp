/// @file
/// What a GateWatcher saw, as Ferry's traces.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "gate_scores.hpp"
#include "trace/trace_file.hpp"

namespace ferry::llama_cpp {

/// Forward passes of one sequence, with llama.cpp's own choices.
class RecordedSteps {
 public:
  /// To be made after the first forward pass, which shows the layers. `ahead`: how many layers to predict.
  RecordedSteps(const GateWatcher& watcher, const Session& session, std::uint16_t ahead);

  /// The last forward pass, of one sequence, as a trace of one step. Valid until the next.
  const engine::TraceFile& take(const PassedStep& step);
  /// From now on steps are kept.
  void keep() { kept_ = std::make_unique<engine::TraceFile>(); }
  /// What was kept, as one sequence.
  const engine::TraceFile& kept();

  /// Rows of all steps, counted once a layer; and those for which the rule chooses other experts than llama.cpp does.
  std::uint64_t rows = 0, other_choices = 0;

 private:
  void take_layer(std::uint16_t layer, const PassedStep& step);

  const GateWatcher& watcher_;
  GateScores scores_;
  std::uint16_t ahead_;
  ModelShape shape_;
  engine::TraceFile step_;
  std::unique_ptr<engine::TraceFile> kept_;
};

}  // namespace ferry::llama_cpp
