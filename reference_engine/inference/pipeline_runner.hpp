/// @file
/// The one implementation of ExpertRunner: a pipeline of some stack on some device.
#pragma once
#include <optional>
#include <utility>

#include "ferry/detail/worker.hpp"
#include "ferry/error.hpp"
#include "ferry/gate/gate_worker.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "inference/expert_device.hpp"
#include "inference/expert_runner.hpp"
#include "math/expert_kernel.hpp"
#include "support/clock.hpp"
#include "stacks/stack_config.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

inline View<const float> view(const Matrix& m) {
  return {m.data(), static_cast<std::uint32_t>(m.size())};
}

template <class Stack>
class PipelineRunner final : public ExpertRunner {
 public:
  PipelineRunner(const CoreConfig<Stack>& config, bool preload, const ExpertStore& store, GateBank& gates,
                 const RunnerOptions& options)
      : store_(store),
        gates_(gates),
        host_kernel_(store.layout()),
        device_(make_device(config, options)),
        virtual_time_(device_->virtual_time()),
        pipe_(config, *device_),
        top_k_(config.model.top_k),
        layers_(config.model.layers),
        allotment_(config.allotment),
        model_(config.model) {
    log = options.log;
    if (log) device_->log = &spans;
    if constexpr (reads_gate_input) {
      if (options.gate_worker) gate_worker_.emplace(gates);
    }
    if (preload && options.preload) {
      for (std::uint32_t p = precision_count - 1; p > 0; --p) {  // the best first
        if ((config.precision.precisions() >> p & 1U) != 0) pipe_.preload(static_cast<Precision>(p));
      }
      device_->drain();
    }
  }

  void begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) override {
    take_stalls();  // the step before is over: it was that phase's
    phase_ = phase;
    if (phase == Phase::prefill) new_section_ = true;
    pipe_.begin_step({phase, {sequences.data(), static_cast<std::uint32_t>(sequences.size())}});
  }

  [[nodiscard]] GateWants gate_wants(std::uint16_t layer) const override {
    if constexpr (reads_gate_input) {
      if (gate_worker_) return {true, 0};  // it makes the rows
      if (Pipe::look_ahead_rows(phase_) == RowSource::gate_input) return {host_computes, rows_ahead(layer)};
    }
    return {host_computes, 0};
  }

  void predicted(View<const Scores> scores) override { predicted_ = scores; }

  void poll() override { static_cast<void>(device_->seen()); }

  void plan(std::uint16_t layer, const Matrix& input, const Matrix& scores, const Times& took) override {
    took_ = took;
    if (virtual_time_ != nullptr) {
      took_ = {virtual_time_->pass_gate(layer, static_cast<std::uint32_t>(scores.rows())), 0, 0, 0};
    }
    Nanoseconds begin = now_ns();
    plan_ = pipe_.plan({layer, view(scores), view(scores)});
    note(Lane::host, "decide", begin, &PhaseTimes::decision);
    device_->begin(plan_, input);
    start_host(input);
    begin = now_ns();
    pipe_.look_ahead();
    if constexpr (reads_gate_input) {
      const std::uint16_t count = pipe_.rows_ahead(RowSource::gate_input);
      const auto first = static_cast<std::uint16_t>(layer + 1U);
      if (predicted_.size > 0) {
        look_ahead_all(std::exchange(predicted_, {}));
      } else if (count > 0 && gate_worker_) {
        gate_worker_->start(first, count, input);
        gate_rows_ = true;
      } else if (count > 0) {
        look_ahead_all(gates_.scores(first, count, input));
      }
    }
    note(Lane::host, "look ahead", begin, &PhaseTimes::decision);
  }

  void run_resident(std::uint16_t /*layer*/, const Matrix& /*input*/) override {
    if (plan_.resident.size > 0) {
      device_->compute(plan_.resident);
      pipe_.done(plan_.resident);
    }
    if constexpr (reads_gate_input) {
      if (std::exchange(gate_rows_, false)) {  // always here: the order of decisions does not depend on threads
        const Nanoseconds begin = now_ns();
        look_ahead_all(gate_worker_->join());
        note(Lane::host, "look ahead", begin, &PhaseTimes::decision);
      }
    }
  }

  [[nodiscard]] bool wants_partial(std::uint16_t /*layer*/) const override {
    return pipe_.rows_ahead(RowSource::partial_hidden) > 0;
  }

  void partial(Matrix& out) const override { device_->partial(out); }

  void look_ahead(std::uint16_t layer, const Matrix& scores) override {
    const Nanoseconds begin = now_ns();
    if (virtual_time_ != nullptr) virtual_time_->pass_partial(layer, static_cast<std::uint32_t>(scores.rows()));
    pipe_.look_ahead(RowSource::partial_hidden, [&](std::uint16_t next, std::uint16_t) {
      return Scores{next, view(scores), view(scores)};
    });
    note(Lane::host, "look ahead", begin, &PhaseTimes::decision);
  }

  [[nodiscard]] bool waits() const override { return plan_.arriving.size > 0 || plan_.host.size > 0; }

  void run(std::uint16_t /*layer*/, const Matrix& /*input*/, Matrix& out) override {
    for (const Task& t : plan_.arriving) {
      const Nanoseconds begin = now_ns();
      pipe_.wait(t);
      if (!device_->waits_itself()) note(Lane::device, "wait", begin, &PhaseTimes::stall);
      device_->compute({&t, 1});
      if (t.transient) device_->poison(t.slot);  // before `done`, which may start the next copy into it
      pipe_.done(t);
    }
    took_.host = wait_host();
    took_.device = device_->expert_ns();
    device_->add_up(out);
    take_stalls();
  }

  void finish(std::uint16_t layer) override {
    pipe_.finish(layer, took_);
    if (phase_ == Phase::decode) note_uses();
  }

  void end_sequence(std::uint32_t sequence) override {
    pipe_.end_sequence(sequence);
    take_stalls();
  }
  void abandon() override {
    try {  // the error that matters is the one that led here
      if constexpr (reads_gate_input) {
        if (std::exchange(gate_rows_, false)) gate_worker_->join();
      }
    } catch (...) {
    }
    try {
      if constexpr (host_computes) host_worker_.wait();
    } catch (...) {
    }
    host_tasks_ = 0;
    device_->abandon();
    pipe_.abandon();
  }

  [[nodiscard]] RunnerStatistics statistics() const override {
    RunnerStatistics s;
    s.counters = pipe_.counters();
    s.link_peak_bytes_per_s = device_->peak_bytes_per_s();
    if (virtual_time_ != nullptr) s.virtual_ns = virtual_time_->device_done();
    s.arena_bytes = device_->arena_bytes();
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      s.slots[p] = slots_for(allotment_, model_, static_cast<Precision>(p));
      s.copy_bytes[p] = model_.least_bytes(static_cast<Precision>(p));
    }
    for (std::uint16_t d = 1; d <= pipe_.look_ahead_depth(); ++d) {
      auto& layers = s.accuracy.emplace_back();
      for (std::uint16_t l = 0; l < layers_; ++l) layers.push_back(pipe_.core().prediction_accuracy(d, l));
    }
    if constexpr (reads_gate_input) {
      if (gate_worker_) {
        s.gate_worker_busy = gate_worker_->busy_ns();
        s.gate_worker_waited = gate_worker_->waited_ns();
      }
    }
    return s;
  }
  [[nodiscard]] std::vector<Span> link_spans() const override { return device_->link_spans(); }

 private:
  using Pipe = OffloadPipeline<Stack, ExpertDevice>;
  static constexpr bool host_computes = Pipe::traits().computes_on_host;
  static constexpr bool reads_gate_input =
      Pipe::traits().predicts && (Pipe::look_ahead_rows(Phase::prefill) == RowSource::gate_input ||
                                  Pipe::look_ahead_rows(Phase::decode) == RowSource::gate_input);
  struct Nothing {
    void wait() {}
  };

  void take_stalls() { times[static_cast<unsigned>(phase_)].stall += device_->take_stall_ns(); }

  /// How many layers' rows a predictor reads at this one, if it reads any.
  [[nodiscard]] std::uint16_t rows_ahead(std::uint16_t layer) const {
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(pipe_.look_ahead_depth(), layers_ - layer - 1U));
  }

  std::unique_ptr<ExpertDevice> make_device(const CoreConfig<Stack>& c, const RunnerOptions& o) {
    const DeviceNeeds needs{c.model, c.allotment, store_.layout(), [this](Variant v) { return expert(v); }};
    if (!o.make_device) {
      throw ConfigError(
          "a runner was asked for without RunnerOptions::make_device: make it by make_runner(model, options), or set "
          "it");
    }
    return o.make_device(needs, o);
  }

  /// From the tier below.
  [[nodiscard]] HeldBytes expert(Variant v) const {
    HeldBytes held = store_.bytes(v);
    if (held.view.size == 0) throw LinkError("a stack asked for an expert at a precision that was not made ready");
    return held;
  }

  void note(Lane lane, const char* name, Nanoseconds begin, Nanoseconds PhaseTimes::*sum) {
    const Nanoseconds end = now_ns();
    times[static_cast<unsigned>(phase_)].*sum += end - begin;
    if (log) spans.push_back({lane, name, begin, end, {}, false, Ticket::none});
  }

  void note_uses() {
    if (uses.empty() || new_section_) uses.emplace_back();
    new_section_ = false;
    for (const View<const Task>& tasks : {plan_.resident, plan_.arriving}) {
      for (const Task& t : tasks) uses.back().add(t.what);
    }
    uses.back().end_layer();
  }

  /// Predictions for the layers that follow, the nearest first, until the scheduler has what it wants.
  void look_ahead_all(View<const Scores> predicted) {
    pipe_.look_ahead(RowSource::gate_input,
                     [&](std::uint16_t next, std::uint16_t distance) {  // a device may make rows for fewer layers
                       return distance <= predicted.size ? predicted[distance - 1U] : Scores{next, {}, {}};
                     });
  }

  /// Puts the plan's share of the host on its own thread, from the host's own copy of the experts.
  void start_host([[maybe_unused]] const Matrix& input) {
    host_tasks_ = plan_.host.size;
    if (host_tasks_ == 0) return;
    if constexpr (!host_computes) {
      throw LinkError("a schedule with DeviceOnly has planned experts for the host");
    } else {
      host_rows_ = 0;
      for (const Task& t : plan_.host) host_rows_ += t.rows;
      host_ns_ = 0;
      if (virtual_time_ != nullptr) {
        for (const Task& t : plan_.host) host_ns_ += virtual_time_->pass_on_host(t);
      }
      host_input_ = &input;
      host_results_ = device_->host_results();
      host_worker_.start([this] {
        host_begin_ = now_ns();
        for (const Task& t : plan_.host) {
          const HeldBytes held = expert(t.what);
          run_rows(host_kernel_, plan_, t, top_k_, held.view.data, *host_input_, host_results_, host_rows_in_,
                   host_rows_out_);
        }
        host_end_ = now_ns();
      });
    }
  }

  /// Waits for the host's share. Returns what a row of an expert took, 0 if there was none.
  Nanoseconds wait_host() {
    if constexpr (host_computes) {
      if (host_tasks_ == 0) return 0;
      host_tasks_ = 0;
      const Nanoseconds begin = now_ns();
      if (device_->waits_itself()) {  // its link has no thread either: it is moved on meanwhile
        while (!host_worker_.done_within(std::chrono::microseconds(100))) poll();
      }
      host_worker_.wait();
      note(Lane::device, "wait for the host", begin, &PhaseTimes::host_wait);
      times[static_cast<unsigned>(phase_)].host += host_end_ - host_begin_;
      if (log) spans.push_back({Lane::host, "experts", host_begin_, host_end_, {}, false, Ticket::none});
      if (virtual_time_ == nullptr) return (host_end_ - host_begin_) / host_rows_;
      virtual_time_->pass_join();
      return host_ns_ / host_rows_;
    }
    return 0;
  }

  const ExpertStore& store_;
  GateBank& gates_;
  ExpertKernel host_kernel_;
  std::unique_ptr<ExpertDevice> device_;
  VirtualTime* virtual_time_;  ///< the device's, if it has one
  Pipe pipe_;
  std::uint32_t top_k_, layers_;
  Allotment allotment_;
  ModelShape model_;
  Phase phase_ = Phase::prefill;
  bool new_section_ = true, gate_rows_ = false;
  Plan plan_;
  Times took_;  ///< what the layer took, as far as it has got
  View<const Scores> predicted_;
  const Matrix* host_input_ = nullptr;  ///< of the layer's host tasks, with where their results go
  float* host_results_ = nullptr;
  Matrix host_rows_in_, host_rows_out_;
  std::uint32_t host_tasks_ = 0, host_rows_ = 0;
  Nanoseconds host_begin_ = 0, host_end_ = 0;
  Nanoseconds host_ns_ = 0;  ///< of the layer's host tasks on a virtual clock
  std::optional<GateWorker> gate_worker_;
  std::conditional_t<host_computes, detail::Worker, Nothing> host_worker_;
};

/// One row of the table of stacks.
struct RunnerEntry {
  const char* name;
  std::unique_ptr<ExpertRunner> (*build)(const ModelConfig&, const ExpertStore&, GateBank&, const RunnerOptions&);
};

/// The rows, by the paper that they come from; each in a file of its own, since they take a while to compile.
std::vector<RunnerEntry> baseline_runners();
std::vector<RunnerEntry> fate_runners();
std::vector<RunnerEntry> hobbit_runners();
std::vector<RunnerEntry> importance_runners();

/// What a copy of that many bytes costs: by the throttle, the virtual link, or how fast one thread copies memory here;
/// and by the disk that it is read from first.
Nanoseconds copy_cost(const RunnerOptions& options, const ExpertStore& store, std::uint64_t bytes);

namespace part {

template <class Stack>
std::unique_ptr<ExpertRunner> build(const ModelConfig& model, const ExpertStore& store, GateBank& gates,
                                    const RunnerOptions& o) {
  const auto c = stack_config<Stack>(model_shape(model, store, o.max_rows), model.renormalise, o,
                                     [&](std::uint64_t bytes) { return copy_cost(o, store, bytes); });
  return std::make_unique<PipelineRunner<Stack>>(c, stacks::preloads<Stack>(), store, gates, o);
}

template <Precision p>
std::unique_ptr<ExpertRunner> build_resident(const ModelConfig& model, const ExpertStore& store, GateBank& gates,
                                             const RunnerOptions& o) {
  const auto c = resident_config<p>(model_shape(model, store, o.max_rows), model.renormalise, o,
                                    [&](std::uint64_t bytes) { return copy_cost(o, store, bytes); });
  return std::make_unique<PipelineRunner<stacks::LruCache>>(c, true, store, gates, o);
}

}  // namespace part

/// Takes the rows of stack_table.hpp.
struct RunnerTable {
  std::vector<RunnerEntry> entries;

  template <class Stack>
  void stack(const char* name) {
    entries.push_back({name, part::build<Stack>});
  }
  template <Precision p>
  void resident(const char* name) {
    entries.push_back({name, part::build_resident<p>});
  }
};

}  // namespace ferry::engine
