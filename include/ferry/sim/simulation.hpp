/// @file
/// A recorded trace through a pipeline on the virtual clock.
#pragma once
#include <optional>
#include <vector>

#include "ferry/error.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/sim/bounds.hpp"
#include "ferry/sim/costs.hpp"
#include "ferry/trace/trace.hpp"

namespace ferry::inline FERRY_ABI {

/// How a trace is replayed.
struct SimulationOptions {
  std::uint32_t batch = 1;            ///< sequences at a time
  std::uint32_t prefill_chunk = 128;  ///< tokens of a prompt in one step
  bool preload = false;               ///< fill the slots before the first step
  bool bounds = true;                 ///< keep what the bounds need: some 10 bytes an expert use
  bool log = false;                   ///< keep every span for a timeline
};

/// Makes the calls that an engine makes, with a trace for its gates and costs for its work: on a pipeline of any kind,
/// and time that moves as VirtualClock says. The same arguments give the same result to the last digit on any machine.
///
/// One layer: attention and gate on the device; the host reads the gate and plans; the activations of its share of the experts
/// cross, and it starts with them; look-aheads; the resident experts on the device; where a predictor reads partial hidden
/// states, attention and gate once more and a look-ahead; the arriving experts, each behind its copy; the layer ends when
/// device and host have both finished, and the host's results are back. Deciding takes no time here, nor does making
/// gate-input predictions.
///
/// The trace, the pipeline, the clock that is its link, and what its policies view (a future) outlive it.
///
/// `Pipe`: OffloadPipeline or AnyPipeline. `Clock`: VirtualClock, or a link made of one that carries the copies out
/// beside it.
template <class Pipe, class Clock = VirtualClock>
class Replay {
 public:
  /// `model` is the trace's, with max_rows for the largest step; the trace is one that `Trace::validate` takes. Throws
  /// ConfigError for what cannot work, but for routes and phases in the trace, which are not looked at.
  Replay(Pipe& pipe, Clock& clock, const ModelShape& model, const Trace& trace, const Costs& costs,
         const SimulationOptions& options)
      : trace_(fitting(trace, model)),
        costs_(valid(costs, model)),
        options_(options),
        steps_(trace, options.batch, options.prefill_chunk),
        clock_(clock),
        pipe_(pipe),
        model_(model) {
    need_rows();
    if (options.preload) {
      pipe_.preload();
      clock_.drain();
    }
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  /// Runs one forward pass; false if the trace is at its end.
  bool step() {
    if (!steps_.next()) {
      end_group();
      return false;
    }
    if (steps_.ended() > 0) end_group();
    const Phase phase = steps_.phase();
    const std::uint32_t rows = steps_.tokens().size;
    PhaseClock& t = clocks_[static_cast<unsigned>(phase)];
    const PhaseClock before = sample();
    if (phase == Phase::prefill || uses_.empty()) new_stretch_ = true;
    if (phase == Phase::decode && std::exchange(new_stretch_, false)) uses_.emplace_back();
    pipe_.begin_step({phase, steps_.sequences()});
    for (std::uint16_t l = 0; l < model_.layers; ++l) layer(phase, l, rows);
    clock_.sync();  // the step's result is there
    const PhaseClock after = sample();
    t.total += after.total - before.total;
    t.stall += after.stall - before.stall;
    t.host += after.host - before.host;
    t.link_busy += after.link_busy - before.link_busy;
    t.tokens += rows;
    ++t.steps;
    if (phase == Phase::prefill && !steps_.has_prompts()) {
      if (std::exchange(last_prefilled_, steps_.groups()) != steps_.groups()) ++prefilled_.groups;
      prefilled_.total = t.total;
    }
    return true;
  }

  /// What the pipeline has counted so far.
  [[nodiscard]] const Counters& counters() const { return pipe_.counters(); }
  /// Where the time of a phase went.
  [[nodiscard]] const PhaseClock& clock(Phase p) const { return clocks_[static_cast<unsigned>(p)]; }
  /// What the prompts of whole groups of sequences took.
  struct Prefilled {
    std::uint32_t groups = 0;  ///< that have got through their prompts
    Nanoseconds total = 0;     ///< of these prompts
  };
  /// Of the groups so far.
  [[nodiscard]] Prefilled prefilled() const { return prefilled_; }
  /// Of all that was done so far, if it is logged.
  [[nodiscard]] const std::vector<Span>& spans() const { return clock_.spans(); }
  /// How many layers ahead the stack looks.
  [[nodiscard]] std::uint16_t look_ahead_depth() const { return pipe_.look_ahead_depth(); }
  /// Of predictions for `layer` from `distance` layers before it.
  [[nodiscard]] Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const {
    return pipe_.prediction_accuracy(distance, layer);
  }
  /// Hits and requests of decode, by layer.
  [[nodiscard]] const std::vector<std::pair<std::uint64_t, std::uint64_t>>& layer_hits() const { return layer_hits_; }

  /// The work of decode, for the bounds. `slots(p)`: how many slots can hold precision p.
  template <class Slots>
  [[nodiscard]] WorkDone decode_work(const Slots& slots) const {
    WorkDone w = work_;
    if (costs_.link_bytes_per_s_beside_host != 0) w.link_beside_host = 0;  // the fastest follows
    for (std::uint32_t p = 1; p < precision_count; ++p) {
      std::uint64_t copies = 0;
      for (const UseLog& log : uses_)
        copies += fewest_copies(log, static_cast<Precision>(p), slots(static_cast<Precision>(p)));
      Nanoseconds least = 0;
      for (std::uint32_t l = 0; l < model_.layers; ++l) {
        const std::uint64_t bytes = model_.bytes(l, static_cast<Precision>(p));
        if (bytes == 0) continue;
        const Nanoseconds ns = costs_.copy(bytes);
        if (costs_.link_bytes_per_s_beside_host != 0) {
          const Nanoseconds beside =
              detail::sum(costs_.link_latency_ns, duration_ns(bytes, costs_.link_bytes_per_s_beside_host));
          w.link_beside_host = std::max(w.link_beside_host, pace({ns, beside}));
        }
        w.longest_copy = std::max(w.longest_copy, ns);
        if (least == 0 || ns < least) least = ns;
      }
      w.copies = detail::sum(w.copies, detail::product(least, copies));
    }
    return w;
  }

 private:
  /// A pipeline whose stack is known refuses routes when it is compiled, an AnyPipeline when it is called.
  static constexpr bool takes_routes = [] {
    if constexpr (requires { typename Pipe::Stack; }) {
      return !Pipe::traits().router_needs_scores && !Pipe::traits().cache_needs_scores;
    }
    return true;
  }();

  static double pace(SharedTime t) {
    return t.beside > t.alone ? static_cast<double>(t.alone) / static_cast<double>(t.beside) : 1;
  }

  static const Costs& valid(const Costs& costs, const ModelShape& model) {
    costs.validate(model);
    return costs;
  }

  static const Trace& fitting(const Trace& trace, const ModelShape& model) {
    trace.validate_sizes();
    const ModelShape& own = trace.model;
    bool same = own.layers == model.layers && own.experts == model.experts && own.top_k == model.top_k;
    for (std::uint32_t l = 0; same && l < own.layers; ++l) {
      same = own.experts_of(l) == model.experts_of(l) && own.top_k_of(l) == model.top_k_of(l);
    }
    if (!same) detail::fail<ConfigError>("the trace of " + trace.name + " is of another model than the pipeline");
    return trace;
  }

  /// A stack that reads rows which the trace does not have is refused.
  void need_rows() const {
    auto refuse = [&](const std::string& what) {
      detail::fail<ConfigError>("the trace of " + trace_.name + " " + what);
    };
    const StackTraits stack = pipe_.traits();
    if (stack.cache_needs_scores && trace_.scores.empty()) {
      refuse("has no gate scores of all experts (tensor \"scores\"), which this stack's cache policy reads");
    }
    if (stack.router_needs_scores && trace_.scores.empty()) {
      refuse("has no gate scores of all experts (tensor \"scores\"), which this stack's router reads");
    }
    if (stack.skips && trace_.scores.empty() && trace_.weights.empty()) {
      refuse(
          "has no weights (tensor \"weights\"), by which this stack leaves out experts or brings them with fewer bits");
    }
    for (const RowSource rows : stack.rows) {
      if (!stack.predicts) break;
      if (rows == RowSource::gate_input && trace_.ahead < pipe_.look_ahead_depth()) {
        refuse("predicts " + std::to_string(trace_.ahead) + " layers ahead (tensor \"predicted\"), but this stack " +
               "reads " + std::to_string(pipe_.look_ahead_depth()));
      }
      if (rows == RowSource::partial_hidden && trace_.partial.empty()) {
        refuse("has no scores of partial hidden states (tensor \"partial\"), which this stack's predictor reads");
      }
    }
  }

  void end_group() {
    for (std::uint32_t s = 0; s < steps_.ended(); ++s) pipe_.end_sequence(s);
  }

  [[nodiscard]] PhaseClock sample() const {
    PhaseClock c;
    c.total = clock_.now();
    c.stall = clock_.stall_ns();
    c.host = clock_.host_ns();
    c.link_busy = clock_.busy_ns();
    return c;
  }

  /// The tokens of the step that a layer computes: all but those of a prompt whose choices were not recorded, since engines
  /// leave out of the last layer those rows whose outputs nobody reads.
  void find_rows(std::uint16_t l) {
    tokens_.clear();
    rows_.clear();
    for (std::uint32_t i = 0; i < steps_.tokens().size; ++i) {
      if (trace_.expert(steps_.tokens()[i], l, 0) == no_expert) continue;
      tokens_.push_back(steps_.tokens()[i]);
      rows_.push_back(i);
    }
  }

  /// Rows of one layer, as one array: the trace's own if there is one token, a copy otherwise.
  template <class RowOf>
  View<const float> gather(std::vector<float>& buffer, const RowOf& row_of) {
    if (tokens_.size() == 1) return {row_of(tokens_[0]), model_.experts};
    buffer.resize(tokens_.size() * model_.experts);
    auto to = buffer.begin();
    for (const std::uint32_t t : tokens_) to = std::copy_n(row_of(t), model_.experts, to);
    return {buffer.data(), static_cast<std::uint32_t>(buffer.size())};
  }

  /// What experts are chosen by and what weighs them: one array in most models.
  struct Gathered {
    std::vector<float> choice, weight;
  };
  template <class ChoiceOf, class WeightOf>
  Scores gather(Gathered& to, std::uint16_t l, const ChoiceOf& choice_of, const WeightOf& weight_of) {
    if (tokens_.empty()) return {l, {}, {}};
    const View<const float> weight = gather(to.weight, weight_of);
    const std::uint32_t any = tokens_[0];
    return {l, choice_of(any) == weight_of(any) ? weight : gather(to.choice, choice_of), weight};
  }

  Plan plan(std::uint16_t l) {
    if (!trace_.scores.empty()) {
      Scores scores = gather(
          scores_, l, [&](std::uint32_t t) { return trace_.choice_scores_of(t, l); },
          [&](std::uint32_t t) { return trace_.scores_of(t, l); });
      if (rows_.size() < steps_.tokens().size) scores.rows = {rows_.data(), static_cast<std::uint32_t>(rows_.size())};
      return pipe_.plan(scores);
    }
    if constexpr (takes_routes) {
      routes_.clear();
      for (const std::uint32_t t : steps_.tokens()) {
        for (std::uint32_t i = 0; i < model_.top_k; ++i) {
          routes_.push_back({trace_.expert(t, l, i), trace_.weight(t, l, i), no_expert});
        }
      }
      return pipe_.plan(l, {routes_.data(), static_cast<std::uint32_t>(routes_.size())});
    }
    return {};  // refused by need_rows
  }

  void look_ahead(std::uint16_t l) {
    pipe_.look_ahead();
    pipe_.look_ahead(RowSource::gate_input, [&](std::uint16_t ahead, std::uint16_t distance) {
      return gather(
          ahead_, ahead, [&](std::uint32_t t) { return trace_.choice_predicted_of(t, l, distance); },
          [&](std::uint32_t t) { return trace_.predicted_of(t, l, distance); });
    });
  }

  void look_ahead_partial(std::uint16_t l, std::uint32_t rows) {
    pipe_.look_ahead(RowSource::partial_hidden, [&](std::uint16_t next, std::uint16_t) {
      clock_.device(costs_.dense(next, rows), "partial hidden state");
      clock_.sync_device();
      return gather(
          ahead_, next, [&](std::uint32_t t) { return trace_.choice_partial_of(t, l); },
          [&](std::uint32_t t) { return trace_.partial_of(t, l); });
    });
  }

  /// Queues one expert on the device; returns what it takes.
  Nanoseconds compute(const Task& task) {
    const Nanoseconds ns =
        costs_.on_device(task.what.id.layer, model_.bytes(task.what.id.layer, task.what.precision), task.rows);
    clock_.device(ns, "expert", &task.what);
    return ns;
  }

  void layer(Phase phase, std::uint16_t l, std::uint32_t rows) {
    Times took;
    took.attention = costs_.dense(l, rows);
    clock_.device(took.attention, "attention, gate");
    clock_.sync();
    find_rows(l);
    if (tokens_.empty() && !trace_.scores.empty()) return;  // there are no scores to plan by
    const std::uint64_t hits = pipe_.counters().of(phase).hits, requests = pipe_.counters().of(phase).requests;
    const Plan plan = this->plan(l);
    const Nanoseconds host_before = clock_.host_ns();
    clock_.host(plan.host, costs_, rows);
    look_ahead(l);
    for (const Task& t : plan.resident) took.device = compute(t);
    if (plan.resident.size > 0) pipe_.done(plan.resident);
    look_ahead_partial(l, rows);
    for (const Task& t : plan.arriving) {
      pipe_.wait(t);
      took.device = compute(t);
      pipe_.done(t);
    }
    if (plan.host.size > 0) {
      clocks_[static_cast<unsigned>(phase)].host_wait += clock_.sync();
      std::uint32_t host_rows = 0;
      for (const Task& t : plan.host) host_rows += t.rows;
      took.host = (clock_.host_ns() - host_before) / host_rows;
    }
    if (phase == Phase::decode)
      note(plan, l, rows, pipe_.counters().of(phase).hits - hits, pipe_.counters().of(phase).requests - requests);
    pipe_.finish(l, took);
  }

  /// For the bounds and the report.
  void note(const Plan& plan, std::uint16_t l, std::uint32_t rows, std::uint64_t hits, std::uint64_t requests) {
    if (layer_hits_.empty()) layer_hits_.resize(model_.layers);
    layer_hits_[l].first += hits;
    layer_hits_[l].second += requests;
    if (!options_.bounds) return;
    work_.compute = detail::sum(work_.compute, costs_.dense(l, rows));
    work_.dense = detail::sum(work_.dense, costs_.dense(l, rows));
    UseLog& log = uses_.back();
    for (const View<const Task>& tasks : {plan.resident, plan.arriving, plan.host}) {
      for (const Task& t : tasks) {
        const std::uint64_t bytes = model_.bytes(l, t.what.precision);
        const SharedTime shared = costs_.host_time(l, bytes, t.rows);
        const Nanoseconds device = costs_.on_device(l, bytes, t.rows), host = shared.alone;
        work_.host_beside_copies = work_.uses == 0 ? pace(shared) : std::max(work_.host_beside_copies, pace(shared));
        work_.compute = detail::sum(work_.compute, device);
        work_.most_device = std::max(work_.most_device, device);
        work_.least_host = work_.uses == 0 ? host : std::min(work_.least_host, host);
        ++work_.uses;
        log.add(t.what);
      }
    }
    log.end_layer();
  }

  const Trace& trace_;
  const Costs costs_;
  const SimulationOptions options_;
  TraceSteps steps_;
  Clock& clock_;
  Pipe& pipe_;
  ModelShape model_;
  PhaseClock clocks_[2];
  WorkDone work_;
  std::vector<UseLog> uses_;  ///< one for each stretch of decode without a prefill in between
  bool new_stretch_ = true;
  Prefilled prefilled_;
  std::uint32_t last_prefilled_ = 0;  ///< the number of that group
  std::vector<std::pair<std::uint64_t, std::uint64_t>> layer_hits_;
  std::vector<std::uint32_t> tokens_, rows_;  ///< those of the step that the layer computes, and their places in it
  Gathered scores_, ahead_;
  std::vector<Route> routes_;
};

namespace detail {
template <class Stack, class Clock>
struct SimulatedDevice {
  template <class... More>
  SimulatedDevice(const CoreConfig<Stack>& config, const Costs& costs, bool log, More&&... more)
      : clock(config.model, VirtualClock::options(costs, log), std::forward<More>(more)...), pipe(config, clock) {}

  Clock clock;
  OffloadPipeline<Stack, Clock> pipe;
};
}  // namespace detail

/// A replay with a pipeline and a clock of its own, of a stack known when it is compiled.
template <class Stack, class Clock = VirtualClock>
class Simulation : private detail::SimulatedDevice<Stack, Clock>, public Replay<OffloadPipeline<Stack, Clock>, Clock> {
  using Device = detail::SimulatedDevice<Stack, Clock>;

 public:
  /// The pipeline that is simulated.
  using Pipe = OffloadPipeline<Stack, Clock>;

  /// `config.model` is the trace's, with max_rows for the largest step; `more...` goes to the Clock's constructor,
  /// behind VirtualClock's first two. Throws ConfigError for what cannot work.
  template <class... More>
  Simulation(const CoreConfig<Stack>& config, const Trace& trace, const Costs& costs, const SimulationOptions& options,
             More&&... more)
      : Device(config, costs, options.log, std::forward<More>(more)...),
        Replay<Pipe, Clock>(Device::pipe, Device::clock, config.model, trace, costs, options) {}

  /// For reports and tests.
  [[nodiscard]] const Core<Stack>& core() const { return Device::pipe.core(); }
  using Replay<Pipe, Clock>::clock;
};

}  // namespace ferry::inline FERRY_ABI
