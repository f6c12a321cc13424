/// @file
/// OffloadPipeline: the decision core plus a link that carries its commands out.
#pragma once
#include <memory>
#include <new>
#include <vector>

#include "ferry/core.hpp"

namespace ferry::inline FERRY_ABI {

/// One block of memory with a Core at its start.
template <class Stack>
class OwnedCore {
 public:
  explicit OwnedCore(const CoreConfig<Stack>& config)
      : bytes_(Core<Stack>::storage_bytes(config)),
        block_(static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{storage_alignment}))),
        core_(Core<Stack>::create(block_.get(), config)) {}

  Core<Stack>& operator*() const noexcept { return *core_; }
  Core<Stack>* operator->() const noexcept { return core_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{storage_alignment}); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> block_;
  Core<Stack>* core_;
};

/// What an engine talks to. One step:
///
///     pipe.begin_step({phase, sequences});
///     for each MoE layer:
///       plan = pipe.plan(scores);              // demand copies are on their way
///       pipe.look_ahead(predicted_scores);     // optional, also several times: prefetches
///       run plan.resident;                     pipe.done(plan.resident);
///       for each task of plan.arriving:        pipe.wait(task); run it; pipe.done(task);
///       pipe.finish(layer, times);             // ends what `done` has not ended
///
/// An engine that runs everything before `finish` may leave out `done`, unless a task of `arriving` has
/// `freed_by`: that task's copy starts only when the one before it in its slot is done.
///
/// The link outlives the pipeline and belongs to it alone. One instance a device and model; one thread at a time.
template <class StackT, Link LinkT>
class OffloadPipeline {
 public:
  using Stack = StackT;
  using Config = CoreConfig<Stack>;

  /// Throws ConfigError if the configuration cannot work.
  OffloadPipeline(const Config& config, LinkT& link) : core_(config), link_(link) {}

  /// Copies experts into free slots ahead of the first step, evenly over the layers, expert 0 first, at `precision`.
  /// Does not wait for the copies; they are demand copies, behind which the first plan's own queue.
  void preload(Precision precision = Precision::full) {
    const Shape& shape = core_->shape();
    std::vector<Variant> wanted;
    for (std::uint16_t e = 0; e < shape.experts; ++e) {
      for (std::uint16_t l = 0; l < shape.layers; ++l) wanted.push_back({{l, e}, precision});
    }
    View<const Variant> rest{wanted.data(), static_cast<std::uint32_t>(wanted.size())};
    while (rest.size > 0) {
      const std::uint32_t n = core_->preload(rest, link_.seen());
      rest = rest.part(n, rest.size - n);
      carry_out();
    }
  }

  /// Starts one forward pass, one row a token. Throws ConfigError for no rows, or more than max_rows.
  void begin_step(const Step& step) {
    const std::uint32_t rows = step.sequence.size, most = core_->shape().max_rows;
    if (rows == 0 || rows > most) {
      throw ConfigError("a step has " + std::to_string(rows) + " rows, expected 1 to " + std::to_string(most) +
                        " (max_rows)");
    }
    core_->begin_step(step);
  }

  Plan plan(const Scores& scores) noexcept {
    const Plan p = core_->plan(scores, link_.seen());
    carry_out();
    return p;
  }
  Plan plan(std::uint16_t layer, View<const Route> routes) noexcept {
    const Plan p = core_->plan(layer, routes, link_.seen());
    carry_out();
    return p;
  }

  void look_ahead(const Scores& predicted) noexcept {
    core_->look_ahead(predicted, link_.seen());
    carry_out();
  }

  /// For a predictor that reads no rows in this phase; one that does is not asked.
  void look_ahead(std::uint16_t layer) noexcept {
    static_assert(
        look_ahead_rows(Phase::prefill) == RowSource::none || look_ahead_rows(Phase::decode) == RowSource::none,
        "this predictor reads predicted scores: call look_ahead(scores) instead of look_ahead(layer)");
    look_ahead(Scores{layer, {}, {}});
  }

  /// True if a look-ahead at `layer` is of use now, that is: before the rows for it are made.
  [[nodiscard]] bool wants_look_ahead(std::uint16_t layer) const noexcept { return core_->wants_look_ahead(layer); }
  /// How many layers ahead this stack's predictor looks; 0: it does not.
  [[nodiscard]] std::uint16_t look_ahead_depth() const noexcept { return core_->look_ahead_depth(); }
  /// What made the rows that `look_ahead` takes.
  static constexpr RowSource look_ahead_rows(Phase phase) { return part::rows_of<typename Stack::predictor>(phase); }

  void wait(const Task& task) {
    if (task.ready != Ticket::none) link_.wait(task.ready);
  }

  /// These tasks have been computed, or will have been once the device's present work is. Tasks of `arriving`
  /// in the plan's order, each once.
  void done(View<const Task> tasks) noexcept {
    link_.fence(core_->next_fence());
    core_->done(tasks);
    carry_out();
  }
  void done(const Task& task) noexcept { done({&task, 1}); }

  void finish(std::uint16_t layer, const Times& times = {}) noexcept {
    link_.fence(core_->next_fence());
    core_->finish(layer, times, link_.seen());
    carry_out();
  }

  void abandon() noexcept {
    link_.fence(core_->next_fence());
    core_->abandon();
    carry_out();
  }

  void end_sequence(std::uint32_t sequence) noexcept { core_->end_sequence(sequence); }

  [[nodiscard]] const Counters& counters() const noexcept { return core_->counters(); }
  [[nodiscard]] const Core<Stack>& core() const noexcept { return *core_; }
  [[nodiscard]] LinkT& link() const noexcept { return link_; }

  /// True if predicted scores are of any use to this stack.
  static constexpr bool predicts = part::predicts<typename Stack::predictor>();

 private:
  void carry_out() noexcept {
    const Commands c = core_->commands();
    for (const Ticket t : c.drop) link_.drop(t);
    for (const Copy& copy : c.submit) link_.submit(copy);
  }

  OwnedCore<Stack> core_;
  LinkT& link_;
};

}  // namespace ferry::inline FERRY_ABI
