/// @file
/// Traces of the reference engine's own runs.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ferry/router/top_k.hpp"
#include "inference/expert_runner.hpp"
#include "inference/model.hpp"
#include "trace/trace_file.hpp"

namespace ferry::engine {

/// Passes every call on to another runner, and keeps what the gates said: chosen experts, weights, scores of all
/// experts, scores predicted from each gate input for up to `ahead` layers and, if that runner asks for them, of partial
/// hidden states. Sequences are kept apart, so that a batch becomes one sequence after another.
class Recorder final : public PassingRunner {
 public:
  Recorder(ExpertRunner& runner, Model& model, std::uint16_t ahead);

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override;
  [[nodiscard]] GateWants gate_wants(std::uint16_t layer) const override {
    return {true, runner_.gate_wants(layer).layers_ahead};
  }
  void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) override;
  void look_ahead(std::uint16_t layer, const GateScores& scores) override;
  void end_sequence(std::uint32_t sequence) override;

  /// The trace of the sequences that have ended so far. Valid until the next is recorded.
  std::unique_ptr<TraceFile> take(const std::string& name);

 private:
  /// Rows of one sequence, as in a Trace.
  struct Sequence {
    std::vector<std::uint16_t> experts;
    std::vector<float> weights, scores, predicted, partial, choice_scores, choice_predicted, choice_partial;
    std::vector<std::uint8_t> phase;
  };

  /// A sequence that was all prompt has no partial hidden states, since only decode makes them. It gets rows of zeros, like the
  /// prompts of the others.
  void fill_partial();

  Model& model_;
  std::uint16_t ahead_;
  Weighing weighing_;
  Phase phase_ = Phase::prefill;
  std::vector<std::uint32_t> rows_;  ///< of the step: whose they are
  std::vector<Sequence> open_;
  std::unique_ptr<TraceFile> made_;
};

struct RecordOptions {
  std::uint32_t window = 256;          ///< tokens of a sequence, begin token included
  std::uint32_t prompt = 64;           ///< of those, how many are prefill
  std::uint32_t tokens = 0xffffffffU;  ///< at most, rounded up to whole windows
  std::uint16_t ahead = 3;             ///< layers to predict
  std::function<bool(std::uint64_t done, std::uint64_t total)> progress;  ///< false: stop after this window
};

/// Runs a text through the model as it is, in windows: each behind a begin token, the prompt in one step, then token by
/// token. Throws InputError for a window that the model's context does not hold, or an empty text.
std::unique_ptr<TraceFile> record_text(Model& model, ExpertRunner& runner, const std::string& name,
                                       const std::string& text, const RecordOptions& options);
/// The same for texts given as the model's tokens, each cut into windows. A begin token goes before a window only if the model
/// has one, and the window does not begin with it anyway.
std::unique_ptr<TraceFile> record_tokens(Model& model, ExpertRunner& runner, const std::string& name,
                                         const std::vector<std::vector<std::uint32_t>>& texts,
                                         const RecordOptions& options);
/// The text with every expert resident.
std::unique_ptr<TraceFile> record_text(Model& model, const std::string& name, const std::string& text,
                                       const RecordOptions& options);

/// The work of a model's layers. `dense_bits`: what a weight takes that every token needs.
std::vector<LayerWork> model_work(const ModelConfig& config, double dense_bits);

}  // namespace ferry::engine
