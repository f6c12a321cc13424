#include "inference/pipeline_runner.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "ferry/error.hpp"
#include "ferry/gate/gate_bank.hpp"
#include "support/clock.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t host_together = 8;  // experts at once: a store on a disk keeps them in memory meanwhile

View<const float> view(const Matrix& m) {
  return {m.data(), static_cast<std::uint32_t>(m.size())};
}

bool reads_gate_input(const StackTraits& stack) {
  return stack.predicts && (stack.rows[0] == RowSource::gate_input || stack.rows[1] == RowSource::gate_input);
}

std::unique_ptr<ExpertDevice> device_of(const CoreSettings& settings, const ExpertStore& store,
                                        SlotMemory::Source source, const RunnerOptions& options) {
  if (!options.make_device) {
    throw ConfigError(
        "a runner was asked for without RunnerOptions::make_device: make it by make_runner(model, options), or set it");
  }
  return options.make_device({settings.model, settings.allotment, store.layouts(), std::move(source)}, options);
}

}  // namespace

Nanoseconds handoff_ns() {
  static const Nanoseconds measured = [] {
    detail::Worker worker;
    std::array<Nanoseconds, 31> all{};
    for (Nanoseconds& one : all) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      const Nanoseconds begin = now_ns();
      worker.start([] {});
      worker.wait();
      one = now_ns() - begin;
    }
    std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
    return all[all.size() / 2];
  }();
  return measured;
}

PipelineRunner::PipelineRunner(const AnyConfig& config, bool preload, const ExpertStore& store, GateBank& gates,
                               const RunnerOptions& options)
    : store_(store),
      gates_(gates),
      traits_(config.traits()),
      settings_(config.settings()),
      workers_(options.workers),
      host_kernel_(store.layouts(), best_path(), options.workers, options.activations),
      device_(device_of(
          settings_, store, [this](Variant v) { return expert(v); }, options)),
      virtual_time_(device_->virtual_time()),
      link_(*device_),
      pipe_(config.start(link_)) {
  log = options.log;
  if (log) device_->log = &spans;
  if (options.gate_worker && reads_gate_input(traits_)) gate_worker_.emplace(gates);
  if (traits_.computes_on_host) host_worker_.emplace();
  if (preload && options.preload) {
    pipe_->preload();
    device_->drain();
  }
}

void PipelineRunner::begin_step(Phase phase, const std::vector<std::uint32_t>& sequences) {
  take_stalls();  // stalls of the last step count to its phase
  phase_ = phase;
  if (phase == Phase::prefill) new_section_ = true;
  pipe_->begin_step({phase, sequences});
}

GateWants PipelineRunner::gate_wants(std::uint16_t layer) const {
  if (gate_worker_) return {true, 0};  // the worker makes the predicted rows
  if (!traits_.predicts || pipe_->look_ahead_rows(phase_) != RowSource::gate_input)
    return {traits_.computes_on_host, 0};
  const std::uint32_t behind = settings_.model.layers - layer - 1U;
  return {traits_.computes_on_host,
          static_cast<std::uint16_t>(std::min<std::uint32_t>(pipe_->look_ahead_depth(), behind))};
}

void PipelineRunner::plan(std::uint16_t layer, const Matrix& input, const GateScores& scores, const Times& took) {
  took_ = took;
  if (virtual_time_ != nullptr) {
    took_ = {virtual_time_->pass_gate(layer, static_cast<std::uint32_t>(scores.select.rows())), 0, 0, 0};
  }
  link_.take();  // drops the time that `done` and `finish` spent in the link
  Nanoseconds begin = now_ns();
  plan_ = pipe_->plan({layer, view(scores.select), view(scores.weight)});
  note_decision("decide", begin);
  device_->begin(plan_, input);
  start_host(input);
  begin = now_ns();
  pipe_->look_ahead();
  const std::uint16_t count = pipe_->rows_ahead(RowSource::gate_input);
  const auto first = static_cast<std::uint16_t>(layer + 1U);
  const Matrix& read = scores.gate_input(input);
  const View<const Scores> given = std::exchange(predicted_, {});
  if (given.size > 0) {
    look_ahead_all(given);
  } else if (count > 0 && gate_worker_) {
    gate_worker_->start(first, count, read);
    if (workers_ != nullptr) workers_->enter();
    gate_rows_ = true;
  } else if (count > 0) {
    look_ahead_all(gates_.scores(first, count, read));
  }
  note_decision("look ahead", begin);
}

void PipelineRunner::run_resident(std::uint16_t /*layer*/, const Matrix& /*input*/) {
  if (plan_.resident.size > 0) {
    device_->compute(plan_.resident);
    pipe_->done(plan_.resident);
  }
  if (!std::exchange(gate_rows_, false)) return;
  link_.take();
  const Nanoseconds begin = now_ns();  // always at this point, so that decisions do not depend on threads
  look_ahead_all(join_gates());
  note_decision("look ahead", begin);
}

View<const Scores> PipelineRunner::join_gates() {
  struct Leave {  // leaves even if the worker throws
    WorkerPool* workers;
    ~Leave() {
      if (workers != nullptr) workers->leave();
    }
  };
  const Leave leave{workers_};
  return gate_worker_->join();
}

bool PipelineRunner::wants_partial(std::uint16_t /*layer*/) const {
  return pipe_->rows_ahead(RowSource::partial_hidden) > 0;
}

void PipelineRunner::look_ahead(std::uint16_t layer, const GateScores& scores) {
  link_.take();
  const Nanoseconds begin = now_ns();
  if (virtual_time_ != nullptr) virtual_time_->pass_partial(layer, static_cast<std::uint32_t>(scores.select.rows()));
  pipe_->look_ahead(RowSource::partial_hidden, [&](std::uint16_t next, std::uint16_t) {
    return Scores{next, view(scores.select), view(scores.weight)};
  });
  note_decision("look ahead", begin);
}

void PipelineRunner::run(std::uint16_t /*layer*/, const Matrix& /*input*/, Matrix& out) {
  for (const Task& t : plan_.arriving) {
    const Nanoseconds begin = now_ns();
    pipe_->wait(t);
    if (!device_->waits_itself()) note(Lane::device, "wait", begin, &PhaseTimes::stall);
    device_->compute({&t, 1});
    if (t.transient) device_->poison(t.slot);  // before `done`, which may start the next copy into it
    pipe_->done(t);
  }
  took_.host = wait_host();
  took_.device = device_->expert_ns();
  if (took_.device > 0) expert_ns_ = took_.device;
  device_->add_up(out);
  take_stalls();
}

void PipelineRunner::finish(std::uint16_t layer) {
  pipe_->finish(layer, took_);
  if (phase_ == Phase::decode) note_uses();
}

void PipelineRunner::end_sequence(std::uint32_t sequence) {
  pipe_->end_sequence(sequence);
  try {  // a device that is lost says so at the next step; who ends a text may be about to end the rest, too
    take_stalls();
  } catch (const LinkError&) {
  }
}

void PipelineRunner::abandon() {
  try {  // the error that matters is the one that led here
    if (std::exchange(gate_rows_, false)) join_gates();
  } catch (...) {
  }
  try {
    if (host_worker_) host_worker_->wait();
  } catch (...) {
  }
  host_tasks_ = 0;
  device_->abandon();
  pipe_->abandon();
}

RunnerStatistics PipelineRunner::statistics() const {
  RunnerStatistics s;
  s.counters = pipe_->counters();
  s.link_peak_bytes_per_s = device_->peak_bytes_per_s();
  if (virtual_time_ != nullptr) s.virtual_ns = virtual_time_->device_done();
  s.arena_bytes = device_->arena_bytes();
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    s.slots[p] = slots_for(settings_.allotment, settings_.model, static_cast<Precision>(p));
    s.copy_bytes[p] = settings_.model.least_bytes(static_cast<Precision>(p));
  }
  for (std::uint16_t d = 1; d <= pipe_->look_ahead_depth(); ++d) {
    auto& layers = s.accuracy.emplace_back();
    for (std::uint16_t l = 0; l < settings_.model.layers; ++l) layers.push_back(pipe_->prediction_accuracy(d, l));
  }
  if (gate_worker_) {
    s.gate_worker_busy = gate_worker_->busy_ns();
    s.gate_worker_waited = gate_worker_->waited_ns();
  }
  return s;
}

/// The expert's bytes in the store.
HeldBytes PipelineRunner::expert(Variant v) const {
  HeldBytes held = store_.bytes(v);
  if (held.view.size == 0) throw LinkError("a stack asked for an expert at a precision that was not made ready");
  return held;
}

/// Adds real time to a sum. On a virtual clock, decisions take no time, and the device reports its waits itself.
void PipelineRunner::note(Lane lane, const char* name, Nanoseconds begin, Nanoseconds PhaseTimes::*sum) {
  if (virtual_time_ != nullptr) return;
  const Nanoseconds end = now_ns();
  times[static_cast<unsigned>(phase_)].*sum += end - begin;
  if (log) spans.push_back({lane, name, begin, end, {}, false, Ticket::none});
}

void PipelineRunner::note_decision(const char* name, Nanoseconds begin) {
  note(Lane::host, name, begin, &PhaseTimes::decision);
  const Nanoseconds handing = link_.take();
  if (virtual_time_ == nullptr) times[static_cast<unsigned>(phase_)].handing += handing;
}

void PipelineRunner::note_uses() {
  if (uses.empty() || new_section_) uses.emplace_back();
  new_section_ = false;
  for (const View<const Task>& tasks : {plan_.resident, plan_.arriving}) {
    for (const Task& t : tasks) uses.back().add(t.what);
  }
  uses.back().end_layer();
}

/// Predictions for the layers that follow, the nearest first, until the scheduler has what it wants.
void PipelineRunner::look_ahead_all(View<const Scores> predicted) {
  pipe_->look_ahead(RowSource::gate_input,
                    [&](std::uint16_t next, std::uint16_t distance) {  // a device may make rows for fewer layers
                      return distance <= predicted.size ? predicted[distance - 1U] : Scores{next, {}, {}};
                    });
}

/// Starts the host's share of the plan on a thread of its own, with the experts in host memory.
void PipelineRunner::start_host(const Matrix& input) {
  host_tasks_ = plan_.host.size;
  if (host_tasks_ == 0) return;
  if (!host_worker_) throw LinkError("a schedule that loads every miss has planned experts for the host");
  host_rows_ = 0;
  for (const Task& t : plan_.host) host_rows_ += t.rows;
  times[static_cast<unsigned>(phase_)].hosted +=
      virtual_time_ != nullptr ? virtual_time_->pass_on_host(plan_.host, static_cast<std::uint32_t>(input.rows()))
                               : expert_ns_ * host_tasks_;
  host_input_ = &input;
  host_results_ = device_->host_results();
  host_worker_->start([this] {
    host_begin_ = now_ns();
    for (std::uint32_t first = 0; first < plan_.host.size; first += host_together) {
      host_work_.clear();
      host_held_.clear();
      for (const Task& t : plan_.host.part(first, std::min(host_together, plan_.host.size - first))) {
        host_held_.push_back(expert(t.what));
        host_work_.push_back(work_of(plan_, t, host_held_.back().view.data));
      }
      host_kernel_.run(host_work_, settings_.model.top_k, *host_input_, host_results_);
    }
    host_held_.clear();
    host_end_ = now_ns();
  });
}

/// Waits for the host's share. Returns its time divided by its rows, or 0 if there was none.
Nanoseconds PipelineRunner::wait_host() {
  if (host_tasks_ == 0) return 0;
  host_tasks_ = 0;
  const Nanoseconds begin = now_ns();
  if (device_->waits_itself()) {  // its link has no thread: it has to be polled meanwhile
    while (!host_worker_->done_within(std::chrono::microseconds(100))) poll();
  }
  host_worker_->wait();
  PhaseTimes& sums = times[static_cast<unsigned>(phase_)];
  if (virtual_time_ != nullptr) {
    const VirtualTime::Joined joined = virtual_time_->pass_join();
    sums.host += joined.computed;
    sums.host_wait += joined.waited;
    return joined.computed / host_rows_;
  }
  note(Lane::device, "wait for the host", begin, &PhaseTimes::host_wait);
  sums.host += host_end_ - host_begin_;
  if (log) spans.push_back({Lane::host, "experts", host_begin_, host_end_, {}, false, Ticket::none});
  return (host_end_ - host_begin_) / host_rows_;
}

}  // namespace ferry::engine
