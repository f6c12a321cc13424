/// @file
/// OffloadPipeline: the decision core plus a link that carries its commands out.
#pragma once
#include <memory>
#include <new>
#include <vector>

#include "ferry/core.hpp"
#include "ferry/detail/call_order.hpp"
#include "ferry/detail/look_ahead_loop.hpp"
#include "ferry/stack_traits.hpp"

namespace ferry::inline FERRY_ABI {

/// One block of memory with a Core at its start.
template <class Stack>
class OwnedCore {
 public:
  /// Throws ConfigError if the configuration cannot work.
  explicit OwnedCore(const CoreConfig<Stack>& config)
      : bytes_(Core<Stack>::storage_bytes(config)),
        block_(static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{storage_alignment}))) {
    Core<Stack>::create(block_.get(), config);
  }

  /// The core.
  Core<Stack>& operator*() const noexcept { return *operator->(); }
  /// The core.
  Core<Stack>* operator->() const noexcept { return std::launder(reinterpret_cast<Core<Stack>*>(block_.get())); }
  /// Host memory that the core and its tables take.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{storage_alignment}); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> block_;  ///< null once this was moved from
};

/// What an engine talks to. One step:
///
///     pipe.begin_step({phase, sequences});
///     for each MoE layer:
///       plan = pipe.plan(scores);              // demand copies are on their way
///       pipe.look_ahead(source, scores_of);    // optional: prefetches for the layers that follow
///       run plan.resident;                     pipe.done(plan.resident);
///       for each task of plan.arriving:        pipe.wait(task); run it; pipe.done(task);
///       pipe.finish(layer, times);             // ends what `done` has not ended
///
/// An engine that runs everything before `finish` may leave out `done`, unless a task of `arriving` has
/// `Task::freed_by`: that task's copy starts only when the one before it in its slot is done. With as many stream slots as
/// `unwaited_stream_slots` returns, no task ever has a `Task::freed_by`.
///
/// Layers of a step ascend; an engine may leave layers out, or end a step early. Calls are checked in every build: one
/// that does not fit throws UsageError and changes nothing (docs/contracts.md lists them). The core behind it is `noexcept` and
/// checks nothing.
///
/// The link outlives the pipeline, and serves it alone: another pipeline (for another budget, say) numbers its copies anew,
/// and needs a link of its own. One instance a device and model; one thread at a time.
template <class StackT, Link LinkT>
class OffloadPipeline : public detail::LookAheadLoop<OffloadPipeline<StackT, LinkT>> {
  using Predictor = typename StackT::predictor;
  using Turn = detail::CallOrder::Turn;

 public:
  /// Its policies.
  using Stack = StackT;
  /// What it is built from.
  using Config = CoreConfig<Stack>;

  /// Throws ConfigError if the configuration cannot work.
  OffloadPipeline(const Config& config, LinkT& link) : core_(config), link_(link), calls_(config.model) {}

  /// Copies experts into free slots ahead of the first step, evenly over the layers, expert 0 first, at each precision
  /// that the stack may choose, the best first. Does not wait for the copies; they are demand copies, behind which those
  /// of the first plan queue.
  void preload() {
    const Turn turn(calls_, "preload");
    calls_.preload();
    for (std::uint32_t p = precision_count - 1; p > 0; --p) {
      if ((1U << p & core_->precision().precisions()) != 0) preload_at(static_cast<Precision>(p));
    }
  }

  /// Starts one forward pass, one row a token. A step that was left in the middle of a layer is abandoned first, and
  /// counted (Counters::unfinished_steps).
  void begin_step(const Step& step) {
    const Turn turn(calls_, "begin_step");
    if (calls_.begin_step(step)) {
      link_.fence(core_->next_fence());
      core_->count_unfinished();
      core_->abandon();
      carry_out();
    }
    core_->begin_step(step);
  }

  /// The gate's scores: [rows, E], of all rows of the step or of those that `scores.rows` names (engines leave rows out
  /// whose outputs nobody reads).
  Plan plan(const Scores& scores) {
    const Turn turn(calls_, "plan");
    calls_.plan(scores);
    const Plan p = core_->plan(scores, link_.seen());
    carry_out();
    return p;
  }
  /// The same for an engine with a top-k of its own: [rows, k] routes, best first, of all rows of the step or of those that
  /// `rows` names. A route to `no_expert` asks for nothing: its expert is another rank's, for instance. Does not compile for a
  /// stack that needs the scores of all experts (StackTraits).
  Plan plan(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows = {}) {
    const Turn turn(calls_, "plan");
    calls_.plan(layer, routes, rows);
    const Plan p = core_->plan(layer, routes, rows, link_.seen());
    carry_out();
    return p;
  }

  using detail::LookAheadLoop<OffloadPipeline>::look_ahead;
  /// One look-ahead, for an engine with a loop of its own: predicted scores [rows, E] of a later layer, which may be one
  /// of the next step. Both arrays may be empty for a predictor that reads no rows in this phase; a predictor that reads
  /// rows is not called without them.
  void look_ahead(const Scores& predicted) {
    const Turn turn(calls_, "look_ahead");
    calls_.look_ahead(predicted);
    core_->look_ahead(predicted, link_.seen());
    carry_out();
  }
  /// The layer `distance` ahead of the one planned last, if a look-ahead for it from such rows is of use now;
  /// `no_layer` otherwise. What the loop above asks.
  [[nodiscard]] std::uint16_t layer_ahead(RowSource source, std::uint16_t distance) const noexcept {
    return core_->layer_ahead(source, distance);
  }
  /// How many layers ahead this stack's predictor looks; 0: it does not.
  [[nodiscard]] std::uint16_t look_ahead_depth() const noexcept { return core_->look_ahead_depth(); }
  /// What made the rows that `look_ahead` takes.
  static constexpr RowSource look_ahead_rows(Phase phase) { return part::rows_of<Predictor>(phase); }
  /// What the stack is like.
  static constexpr StackTraits traits() { return traits_of<Stack>(); }

  /// Makes the device's next work, or the caller, wait for the copy that the task reads (Link::wait); for a task of
  /// `Plan::resident` there is nothing to wait for. Throws LinkError if that copy can never land.
  void wait(const Task& task) {
    if (task.ready != Ticket::none) link_.wait(task.ready);
  }

  /// These tasks have been computed, or will have been once the device's present work is done. Name tasks of
  /// `Plan::arriving` in the plan's order, each once.
  void done(View<const Task> tasks) {
    const Turn turn(calls_, "done");
    calls_.done(tasks, core_->residency());
    link_.fence(core_->next_fence());
    core_->done(tasks);
    carry_out();
  }
  /// The same for one task.
  void done(const Task& task) { done({&task, 1}); }

  /// The layer is over, with all tasks that `done` has not named. `times`: what was measured, for stacks that weigh costs.
  void finish(std::uint16_t layer, const Times& times = {}) {
    const Turn turn(calls_, "finish");
    calls_.finish(layer, times);
    link_.fence(core_->next_fence());
    core_->finish(layer, times, link_.seen());
    carry_out();
  }

  /// After an error, at any point: the step is given up. Copies on their way still land.
  void abandon() noexcept {
    calls_.abandon();
    link_.fence(core_->next_fence());
    core_->abandon();
    carry_out();
  }

  /// No step will have rows of this sequence any more: policies forget what they kept for it. Its number may be used again.
  void end_sequence(std::uint32_t sequence) noexcept { core_->end_sequence(sequence); }

  /// What has been counted since it was made.
  [[nodiscard]] const Counters& counters() const noexcept { return core_->counters(); }
  /// How good the predictions for `layer` from `distance` layers before it were; `distance` is 1 to the depth, of any other
  /// there are none. The first call after the layer's plan counts them.
  [[nodiscard]] Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept {
    return core_->prediction_accuracy(distance, layer);
  }
  /// For reports and tests.
  [[nodiscard]] const Core<Stack>& core() const noexcept { return *core_; }
  /// As it was given.
  [[nodiscard]] LinkT& link() const noexcept { return link_; }

 private:
  void preload_at(Precision precision) {
    const Shape& shape = core_->shape();
    std::vector<Variant> wanted;
    for (std::uint16_t e = 0; e < shape.experts; ++e) {
      for (std::uint16_t l = 0; l < shape.layers; ++l) {
        if (calls_.has(l, e)) wanted.push_back({{l, e}, precision});
      }
    }
    View<const Variant> rest = wanted;
    while (rest.size > 0) {
      const std::uint32_t n = core_->preload(rest, link_.seen());
      rest = rest.part(n, rest.size - n);
      carry_out();
    }
  }

  void carry_out() noexcept {
    const Commands c = core_->commands();
    for (const Ticket t : c.drop) link_.drop(t);
    for (const Copy& copy : c.submit) link_.submit(copy);
  }

  OwnedCore<Stack> core_;
  LinkT& link_;
  detail::CallOrder calls_;
};

}  // namespace ferry::inline FERRY_ABI
