/// @file
/// Between the model and a policy stack: one interface, instantiated for every stack and link.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "expert.hpp"
#include "ferry/allotment.hpp"
#include "ferry/link/slot_memory.hpp"
#include "ferry/metrics.hpp"
#include "ferry/predictor/gate_bank.hpp"
#include "ferry/sim/bounds.hpp"
#include "ferry/timeline.hpp"

namespace ferry::engine {

/// The clock of every span and time.
inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Where the time of one phase went, in nanoseconds of the device's lane.
struct PhaseTimes {
  Nanoseconds stall = 0;      ///< the device waited for a copy
  Nanoseconds decision = 0;   ///< the policies decided, and made the rows that they read
  Nanoseconds host = 0;       ///< the host's own thread computed experts
  Nanoseconds host_wait = 0;  ///< the device waited for it
};

/// Runs the routed experts of each layer under some policy.
class ExpertRunner {
 public:
  virtual ~ExpertRunner() = default;

  virtual void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) = 0;
  /// Decides, puts the copies on their way and the host's share of the experts to work. `input`, `scores`:
  /// [rows, hidden], [rows, experts]; both stay as they are until `run` returns. `took`: the layer's
  /// attention (with what else each token needs) and gate.
  virtual void plan(std::uint16_t layer, const Matrix& input, const Matrix& scores, const Times& took) = 0;
  /// Computes what is on the device already.
  virtual void run_resident(std::uint16_t layer, const Matrix& input) = 0;
  /// True if the next layer's scores are wanted of a partial hidden state: what run_resident gave, by `partial`.
  [[nodiscard]] virtual bool wants_partial(std::uint16_t layer) const = 0;
  /// The weighted sum of the experts that run_resident computed, [rows, hidden].
  virtual void partial(Matrix& out) const = 0;
  /// Scores [rows, experts] of the next layer made from it.
  virtual void look_ahead(std::uint16_t layer, const Matrix& scores) = 0;
  /// Computes the rest: the weighted sum of each row's experts, in the order of their rank, [rows, hidden].
  virtual void run(std::uint16_t layer, const Matrix& input, Matrix& out) = 0;
  virtual void end_sequence(std::uint32_t sequence) = 0;
  /// After an exception in the middle of a step.
  virtual void abandon() = 0;

  [[nodiscard]] virtual const Counters& counters() const = 0;
  [[nodiscard]] virtual double link_peak_bytes_per_s() const = 0;
  [[nodiscard]] virtual std::vector<Span> link_spans() const = 0;
  [[nodiscard]] virtual std::uint64_t arena_bytes() const = 0;
  [[nodiscard]] virtual std::uint32_t slots() const = 0;
  /// Bytes of the cheapest copy that the stack may choose.
  [[nodiscard]] virtual std::uint64_t least_copy_bytes() const = 0;
  /// How many layers ahead the stack's predictor looks, and how well, for layers 0 to L - 1.
  [[nodiscard]] virtual std::uint16_t look_ahead_depth() const = 0;
  [[nodiscard]] virtual Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const = 0;
  /// Of a worker that makes predicted rows: how long it was busy, and how long the engine waited for it.
  [[nodiscard]] virtual std::pair<Nanoseconds, Nanoseconds> gate_worker() const = 0;

  /// By Phase.
  PhaseTimes times[2];
  /// What the device computed in decode, one list for each stretch without a prefill in between: for the bounds.
  std::vector<std::vector<AskedFor>> asked;
  /// Device and host spans, if wanted.
  std::vector<Span> spans;
  bool log = false;
};

/// How the slots of a budget are laid out.
enum class PoolChoice {
  stack,      ///< as the stack's own paper has it
  per_layer,  ///< a pool for each layer
  one,        ///< one pool over all layers
  shallow     ///< a pool for each layer, the shallow ones whole
};

/// What a runner is made of.
struct RunnerOptions {
  std::string stack = "lru";
  PoolChoice pools = PoolChoice::stack;
  std::uint64_t budget_bytes = 0;      ///< ignored by stacks that keep everything
  std::uint32_t max_rows = 128;        ///< largest prefill chunk or batch
  std::uint64_t link_bytes_per_s = 0;  ///< 0: as fast as memory copies (host thread only)
  bool log = false;
  bool poison = SlotMemory::poison_by_default;  ///< fill freed slots with NaN
  bool gate_worker = false;                     ///< a thread of its own makes predicted rows while resident experts run

  // Parameters of policies, for the stacks that have them. Unset: the paper's.
  std::optional<float> t1, t2;  ///< ImportanceThresholds
  std::optional<float> alpha;   ///< ExpertCacheRouter and PartialHidden
  std::optional<std::uint32_t> low_share_percent, shallow_layers, percentile, depth;

  /// On the virtual clock instead of a copy thread: what each layer and each expert costs the device, and each row of
  /// an expert the host.
  bool virtual_clock = false;
  Nanoseconds virtual_layer_ns = 0, virtual_expert_ns = 0, virtual_host_ns = 0;
};

/// What is known of a stack without building it.
struct StackInfo {
  std::string name;
  const char* what = "";          ///< one line for help
  bool keeps_everything = false;  ///< needs every expert in its budget
  bool lossless = false;          ///< computes what the resident model of the same precision computes, bit for bit
  PrecisionSet precisions = Precision::full;  ///< of experts that it copies, with the options' defaults
  std::vector<std::string> parameters;        ///< of RunnerOptions that it takes, as the command spells them
};

/// All stacks, in the order in which help lists them.
const std::vector<StackInfo>& all_stacks();

/// Throws InputError for an unknown name, and suggests the nearest.
const StackInfo& find_stack(const std::string& name);

/// What the library needs to know of a model.
ModelShape model_shape(const ModelConfig& config, const ExpertStore& store, std::uint32_t max_rows);

/// Builds the stack of that name. `store` has its precisions and outlives the runner, as do the gates.
/// Throws InputError for an unknown name, ConfigError for a budget that is too small.
std::unique_ptr<ExpertRunner> make_runner(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                          const RunnerOptions& options);

}  // namespace ferry::engine
