/// @file
/// Between the model and a policy stack: one interface, instantiated for every stack and link.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "expert.hpp"
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
  Nanoseconds stall = 0;     ///< the device waited for a copy
  Nanoseconds decision = 0;  ///< the policies decided
};

/// Runs the routed experts of each layer under some policy.
class ExpertRunner {
 public:
  virtual ~ExpertRunner() = default;

  virtual void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) = 0;
  /// Decides, and puts the copies on their way. `input`, `scores`: [rows, hidden], [rows, experts].
  virtual void plan(std::uint16_t layer, const Matrix& input, const Matrix& scores) = 0;
  /// Computes what was planned: the weighted sum of each row's experts, in the order of their rank, [rows, hidden].
  virtual void run(std::uint16_t layer, const Matrix& input, Matrix& out) = 0;
  virtual void end_sequence(std::uint32_t sequence) = 0;
  /// After an exception in the middle of a step.
  virtual void abandon() = 0;

  [[nodiscard]] virtual const Counters& counters() const = 0;
  [[nodiscard]] virtual double link_peak_bytes_per_s() const = 0;
  [[nodiscard]] virtual std::vector<Span> link_spans() const = 0;
  [[nodiscard]] virtual std::uint64_t arena_bytes() const = 0;
  [[nodiscard]] virtual std::uint32_t slots() const = 0;

  /// By Phase.
  PhaseTimes times[2];
  /// What the device computed in decode, one list for each stretch without a prefill in between: for the bounds.
  std::vector<std::vector<AskedFor>> asked;
  /// Device and host spans, if wanted.
  std::vector<Span> spans;
  bool log = false;
};

/// How the slots of a budget are laid out.
enum class PoolChoice { per_layer, one };

/// What a runner is made of.
struct RunnerOptions {
  std::string stack = "lru";
  PoolChoice pools = PoolChoice::per_layer;
  std::uint64_t budget_bytes = 0;      ///< ignored by `resident`
  std::uint32_t max_rows = 128;        ///< largest prefill chunk or batch
  std::uint64_t link_bytes_per_s = 0;  ///< 0: as fast as memory copies (host thread only)
  bool log = false;
  bool poison = SlotMemory::poison_by_default;  ///< fill freed slots with NaN
  /// On the virtual clock instead of a copy thread: what each layer and each expert costs the device.
  bool virtual_clock = false;
  Nanoseconds virtual_layer_ns = 0, virtual_expert_ns = 0;
};

/// The names that RunnerOptions::stack takes, in the order in which help lists them.
std::vector<std::string> stack_names();

/// True if that stack needs every expert in its budget.
bool stack_needs_everything(const std::string& name);

/// What the library needs to know of a model.
ModelShape model_shape(const ModelConfig& config, const ExpertLayout& layout, std::uint32_t max_rows);

/// Builds the stack of that name. `store` and `gates` outlive the runner.
/// Throws InputError for an unknown name (and suggests the nearest), ConfigError for a budget that is too small.
std::unique_ptr<ExpertRunner> make_runner(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                          const RunnerOptions& options);

}  // namespace ferry::engine
