/// @file
/// The one implementation of ExpertRunner: a pipeline of some stack on some device.
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ferry/any_pipeline.hpp"
#include "ferry/detail/worker.hpp"
#include "ferry/gate/gate_worker.hpp"
#include "inference/expert_device.hpp"
#include "inference/expert_runner.hpp"
#include "math/expert_kernel.hpp"
#include "support/clock.hpp"

namespace ferry::engine {

/// Passes calls on to a link, and knows how long they took.
class TimedLink final : public AnyLink {
 public:
  explicit TimedLink(AnyLink& link) : link_(link) {}

  void submit(const Copy& copy) noexcept override {
    time([&] { link_.submit(copy); });
  }
  void drop(Ticket ticket) noexcept override {
    time([&] { link_.drop(ticket); });
  }
  [[nodiscard]] Seen seen() noexcept override {
    Seen seen;
    time([&] { seen = link_.seen(); });
    return seen;
  }
  void fence(Fence fence) noexcept override { link_.fence(fence); }
  void wait(Ticket ticket) override { link_.wait(ticket); }

  /// Since the last call.
  Nanoseconds take() { return std::exchange(took_, 0); }

 private:
  template <class Call>
  void time(const Call& call) noexcept {
    const Nanoseconds begin = now_ns();
    call();
    took_ += now_ns() - begin;
  }

  AnyLink& link_;
  Nanoseconds took_ = 0;
};

class PipelineRunner final : public ExpertRunner {
 public:
  /// `preload`: fills the slots before the first step. Throws ConfigError for a configuration that cannot work, and for
  /// options without `make_device`.
  PipelineRunner(const AnyConfig& config, bool preload, const ExpertStore& store, GateBank& gates,
                 const RunnerOptions& options);

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override;
  [[nodiscard]] GateWants gate_wants(std::uint16_t layer) const override;
  void predicted(View<const Scores> scores) override { predicted_ = scores; }
  void poll() override { static_cast<void>(device_->seen()); }
  void plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) override;
  void run_resident(std::uint16_t layer, const Matrix& input) override;
  [[nodiscard]] bool wants_partial(std::uint16_t layer) const override;
  void partial(Matrix& out) const override { device_->partial(out); }
  void look_ahead(std::uint16_t layer, const GateScores& scores) override;
  [[nodiscard]] bool waits() const override { return plan_.arriving.size > 0 || plan_.host.size > 0; }
  void run(std::uint16_t layer, const Matrix& input, Matrix& out) override;
  void finish(std::uint16_t layer) override;
  void end_sequence(std::uint32_t sequence) override;
  void abandon() override;

  [[nodiscard]] RunnerStatistics statistics() const override;
  [[nodiscard]] std::vector<Span> link_spans() const override { return device_->link_spans(); }

 private:
  void take_stalls() { times[static_cast<unsigned>(phase_)].stall += device_->take_stall_ns(); }
  [[nodiscard]] HeldBytes expert(Variant v) const;
  void note(Lane lane, const char* name, Nanoseconds begin, Nanoseconds PhaseTimes::*sum);
  void note_decision(const char* name, Nanoseconds begin);
  void note_uses();
  void look_ahead_all(View<const Scores> predicted);
  void start_host(const Matrix& input);
  /// Waits for the predicted scores that the gate worker makes, and gives back its place among the threads at work.
  View<const Scores> join_gates();
  Nanoseconds wait_host();

  const ExpertStore& store_;
  GateBank& gates_;
  const StackTraits traits_;
  const CoreSettings settings_;
  WorkerPool* const workers_;
  ExpertKernel host_kernel_;
  std::unique_ptr<ExpertDevice> device_;
  VirtualTime* virtual_time_;  ///< the device's, if it has one
  TimedLink link_;             ///< the device's
  std::unique_ptr<AnyPipeline> pipe_;
  Phase phase_ = Phase::prefill;
  bool new_section_ = true, gate_rows_ = false;
  Plan plan_;
  Times took_;                 ///< what the layer took, as far as it has got
  Nanoseconds expert_ns_ = 0;  ///< what an expert took on the device last; 0: none was computed there yet
  View<const Scores> predicted_;
  const Matrix* host_input_ = nullptr;  ///< of the layer's host tasks, with where their results go
  float* host_results_ = nullptr;
  std::vector<HeldBytes> host_held_;
  std::vector<ExpertKernel::Work> host_work_;
  std::uint32_t host_tasks_ = 0, host_rows_ = 0;
  Nanoseconds host_begin_ = 0, host_end_ = 0;
  std::optional<GateWorker> gate_worker_;      ///< if options ask for one, and the stack's predictor reads gate inputs
  std::optional<detail::Worker> host_worker_;  ///< if the stack leaves misses to the host
};

/// What a copy of that many bytes costs: by the throttle, the virtual link, or how fast one thread copies memory here;
/// and by the disk that it is read from first.
Nanoseconds copy_cost(const RunnerOptions& options, const ExpertStore& store, std::uint64_t bytes);

/// What it takes here to hand work to a thread that sleeps, and to hear that it is done: the median of some, measured once.
Nanoseconds handoff_ns();

}  // namespace ferry::engine
