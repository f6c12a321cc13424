/// @file
/// Between the model and a policy stack: one interface, instantiated for every stack.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ferry/fwd.hpp"
#include "ferry/metrics.hpp"
#include "ferry/sim/bounds.hpp"
#include "ferry/sim/costs.hpp"
#include "ferry/timeline.hpp"
#include "inference/expert_device.hpp"
#include "math/activations.hpp"
#include "math/matrix.hpp"
#include "stacks/stack_options.hpp"
#include "store/expert_store.hpp"
#include "support/worker_pool.hpp"

namespace ferry::engine {

/// Where the time of one phase went, in nanoseconds of the device's lane.
struct PhaseTimes {
  Nanoseconds stall = 0;      ///< the device waited for a copy
  Nanoseconds decision = 0;   ///< the policies decided, made the rows that they read, and handed copies to the link
  Nanoseconds handing = 0;    ///< of that, the calls of the link
  Nanoseconds host = 0;       ///< the host's own thread computed experts
  Nanoseconds host_wait = 0;  ///< the device waited for it
  Nanoseconds hosted = 0;     ///< what the device would have taken for the experts that the host computed
};

/// What a layer's gate says, [rows, experts] each, as ferry::Scores has it: one matrix where its rule has one.
struct GateScores {
  const Matrix& select;
  const Matrix& weight;
  const Matrix* read = nullptr;  ///< the gate's input [rows, hidden], where experts read something else; null: the same

  /// What the gate read, where experts read `input`.
  [[nodiscard]] const Matrix& gate_input(const Matrix& input) const { return read != nullptr ? *read : input; }

  GateScores(const Matrix& both) : select(both), weight(both) {}  // NOLINT: a softmax is both
  GateScores(const Matrix& choose_by, const Matrix& weigh_by) : select(choose_by), weight(weigh_by) {}
};

/// What a runner wants of a layer's gate, on the host, beside its scores.
struct GateWants {
  bool input = true;               ///< the gate's input
  std::uint16_t layers_ahead = 0;  ///< for how many layers ahead their gates score that input, if the device does so
};

/// What a runner has counted and measured so far, and what it is made of.
struct RunnerStatistics {
  Counters counters;
  double link_peak_bytes_per_s = 0;
  Nanoseconds virtual_ns = 0;  ///< when the device will have done what it was given, on the virtual clock; otherwise 0
  std::uint64_t arena_bytes = 0;                            ///< of the slots
  std::array<std::uint64_t, precision_count> slots{};       ///< that can hold an expert of that precision
  std::array<std::uint64_t, precision_count> copy_bytes{};  ///< of the cheapest copy of one; 0: not stored
  /// How well the stack's predictor looks 1, 2, ... layers ahead, as far as it looks, for layers 0 to L - 1.
  std::vector<std::vector<Accuracy>> accuracy;
  /// Of a worker that makes predicted rows: how long it was busy, and how long the engine waited for it.
  Nanoseconds gate_worker_busy = 0, gate_worker_waited = 0;
};

/// Runs the routed experts of each layer under some policy. Where hidden states are in memory of a device's own (see
/// ExpertDevice), `input` holds what the host needs of them, and `out` and `partial` are left alone.
class ExpertRunner {
 public:
  virtual ~ExpertRunner() = default;

  virtual void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) = 0;
  /// What the model's device should give ahead of `plan`, if it can: the rest the runner makes itself, from the input.
  [[nodiscard]] virtual GateWants gate_wants(std::uint16_t /*layer*/) const { return {}; }
  /// Scores of the layers that follow, from the layer's gate input, the nearest first. They hold until `plan` returns.
  virtual void predicted(View<const Scores> /*scores*/) {}
  /// Time passes: copies may be moved on.
  virtual void poll() {}
  /// Decides, puts the copies on their way and the host's share of the experts to work. `input`: [rows, hidden], what experts
  /// read; it and the scores stay as they are until `run` returns. `took`: the layer's attention (with what else each token
  /// needs) and gate.
  virtual void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) = 0;
  /// Computes what is on the device already.
  virtual void run_resident(std::uint16_t layer, const Matrix& input) = 0;
  /// True if the next layer's scores are wanted of a partial hidden state: what run_resident gave, by `partial`.
  [[nodiscard]] virtual bool wants_partial(std::uint16_t layer) const = 0;
  /// The weighted sum of the experts that run_resident computed, [rows, hidden].
  virtual void partial(Matrix& out) const = 0;
  /// Scores of the next layer made from it.
  virtual void look_ahead(std::uint16_t layer, const GateScores& scores) = 0;
  /// True if the plan has more than what is on the device already: `run` waits, for copies or for the host.
  [[nodiscard]] virtual bool waits() const = 0;
  /// Computes the rest: the weighted sum of each row's experts, in the order of their rank, [rows, hidden]. If it
  /// does not wait, `look_ahead` may come between it and `finish`.
  virtual void run(std::uint16_t layer, const Matrix& input, Matrix& out) = 0;
  /// Ends the layer.
  virtual void finish(std::uint16_t layer) = 0;
  virtual void end_sequence(std::uint32_t sequence) = 0;
  /// After an exception in the middle of a step.
  virtual void abandon() = 0;

  [[nodiscard]] virtual RunnerStatistics statistics() const = 0;
  /// What the link has carried, if wanted: not a statistic, since it grows with every copy.
  [[nodiscard]] virtual std::vector<Span> link_spans() const = 0;

  /// By Phase.
  PhaseTimes times[2];
  /// What was computed in decode, on the device, one log for each stretch without a prefill in between: for the bounds.
  std::vector<UseLog> uses;
  /// The fewest copies, by Precision, that are needed by the logs that were not kept.
  std::array<std::uint64_t, precision_count> fewest{};
  /// Once there are many logs, or `most_uses` uses in them together, none is kept: those of an endless run would fill the
  /// memory. What the parts of a log need at least, the whole log needs, too.
  void end_long_logs(std::size_t most_uses = std::size_t{1} << 20U);
  /// Device and host spans, if wanted.
  std::vector<Span> spans;
  bool log = false;
};

/// Passes every call on to another runner, which outlives it: the base of those that watch one, or change what it is
/// told.
class PassingRunner : public ExpertRunner {
 public:
  explicit PassingRunner(ExpertRunner& runner) : runner_(runner) {}

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override {
    runner_.begin_step(phase, sequences);
  }
  [[nodiscard]] GateWants gate_wants(std::uint16_t layer) const override { return runner_.gate_wants(layer); }
  void predicted(View<const Scores> scores) override { runner_.predicted(scores); }
  void poll() override { runner_.poll(); }
  void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) override {
    runner_.plan(layer, input, scores, took);
  }
  void run_resident(std::uint16_t layer, const Matrix& input) override { runner_.run_resident(layer, input); }
  [[nodiscard]] bool wants_partial(std::uint16_t layer) const override { return runner_.wants_partial(layer); }
  void partial(Matrix& out) const override { runner_.partial(out); }
  void look_ahead(std::uint16_t layer, const GateScores& scores) override { runner_.look_ahead(layer, scores); }
  [[nodiscard]] bool waits() const override { return runner_.waits(); }
  void run(std::uint16_t layer, const Matrix& input, Matrix& out) override { runner_.run(layer, input, out); }
  void finish(std::uint16_t layer) override { runner_.finish(layer); }
  void end_sequence(std::uint32_t sequence) override { runner_.end_sequence(sequence); }
  void abandon() override { runner_.abandon(); }

  [[nodiscard]] RunnerStatistics statistics() const override { return runner_.statistics(); }
  [[nodiscard]] std::vector<Span> link_spans() const override { return runner_.link_spans(); }

 protected:
  ExpertRunner& runner_;
};

/// Longer than a layer of a small model takes, so that the copy thread does not sleep in the middle of a step. Where there
/// is one core only, looking for work would take the computation's time: 0.
Nanoseconds usual_linger_ns();

/// What a runner is made of.
struct RunnerOptions : StackOptions {
  std::uint64_t link_bytes_per_s = 0;      ///< 0: as fast as memory copies (host thread only)
  std::uint64_t prefetch_chunk_bytes = 0;  ///< after each, demand copies may overtake a prefetch; 0: none may
  bool log = false;
  bool poison = SlotMemory::poison_by_default;  ///< fill freed slots with NaN
  bool preload = true;                          ///< for stacks that do: false only to see whether they can be made
  Nanoseconds linger_ns = 0;                    ///< how long the copy thread looks for work before it sleeps
  WorkerPool* workers = nullptr;                ///< share what the CPU computes; null: one thread. Outlives the runner
  Activations activations = Activations::floats;  ///< that experts of codes are multiplied with, on the CPU
  bool gate_worker = false;  ///< a thread of its own makes predicted rows while resident experts run

  /// On the virtual clock instead of a copy thread: what everything costs there, the link too.
  std::optional<Costs> virtual_costs;

  /// Makes the device; has no default. make_runner(Model&, ...) sets it to the model's own (Model::make_device).
  std::function<std::unique_ptr<ExpertDevice>(const DeviceNeeds&, const RunnerOptions&)> make_device;
};

/// What the library needs to know of a model.
ModelShape model_shape(const ModelConfig& config, const ExpertStore& store, std::uint32_t max_rows);
/// The same of experts that nobody has read: their layouts, one for all layers or one a layer, and bit `1 << p` for every
/// Precision p that they are held at.
ModelShape model_shape(const ModelConfig& config, const std::vector<ExpertLayout>& layouts, std::uint8_t precisions,
                       std::uint32_t max_rows);

/// Builds the stack of that name. `store` has its precisions and outlives the runner, as do the gates.
/// Throws InputError for an unknown name, ConfigError for a budget that is too small or options without `make_device`.
std::unique_ptr<ExpertRunner> make_runner(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                          const RunnerOptions& options);

}  // namespace ferry::engine
